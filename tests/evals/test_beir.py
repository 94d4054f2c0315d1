"""BEIR's data sets as one group of evaluators, on generated folders of BEIR's layout."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.cli.beir import with_beir
from big_retrieval.cli.option_groups import BeirOptions
from big_retrieval.config import recipe
from big_retrieval.config.benchmarks import NAMES, ZERO_SHOT
from big_retrieval.config.checks import check
from big_retrieval.data.build import make_source
from big_retrieval.data.sources import texts_of
from big_retrieval.errors import UserError
from big_retrieval.evals.systems import bm25_system
from configs import dpr_msmarco, vdr_t2t_msmarco
from tests.helpers import lexical_texts, tiny

DOCUMENTS = 6


def write_beir(folder: Path, names: tuple[str, ...] = NAMES, titles: bool = True) -> Path:
    """Writes small data sets with different words."""
    for seed, name in enumerate(names):
        rng, made = np.random.default_rng(seed), folder / name
        (made / "qrels").mkdir(parents=True)
        documents = [
            {"_id": f"d{i}", "text": f"{name} w{rng.integers(9)} w{rng.integers(9)} {'x ' * i}"}
            | ({"title": f"title {i}"} if titles else {})
            for i in range(DOCUMENTS)
        ]
        queries = [{"_id": f"q{i}", "text": f"w{i} w{i + 3}"} for i in range(3)]
        for file, rows in (("corpus", documents), ("queries", queries)):
            lines = [json.dumps(row) + "\n" for row in rows]
            (made / f"{file}.jsonl").write_text("".join(lines))
        split = "dev" if name == "msmarco" else "test"
        pairs = [f"q{i}\td{(i + seed) % DOCUMENTS}\t{1 + i % 2}\n" for i in range(3)]
        pairs.append(f"q0\td{(5 + seed) % DOCUMENTS}\t-1\n")  # as TREC-COVID has some
        text = "query-id\tcorpus-id\tscore\n" + "".join(pairs)
        (made / "qrels" / f"{split}.tsv").write_text(text)
    return folder


def test_beir_metrics_average_the_zero_shot_sets(tmp_path: Path) -> None:
    write_beir(tmp_path)
    config = configs.load(dpr_msmarco.get_config(f"beir={tmp_path}"))
    assert set(config.evals) == set(NAMES)
    assert len(NAMES) == 13
    for name, part in config.evals.items():
        source: Any = make_source(part.data)
        assert (len(source.queries), len(source.documents)) == (3, DOCUMENTS), name
    found = bm25_system(config).run(None)
    for metric in ("nDCG@10", "MRR@10", "R@100"):
        values = [found[f"ranking/{name}/{metric}"] for name in ZERO_SHOT]
        assert len(values) == 12
        assert len(set(values)) > 1 or metric == "R@100"
        assert found[f"ranking/traffic/{metric}"] == pytest.approx(np.mean(values))


def test_config_argument_selects_sets() -> None:
    for file in (dpr_msmarco, vdr_t2t_msmarco):
        assert set(file.get_config("sets=scifact+fiqa").evals) == {"scifact", "fiqa"}
        assert not file.get_config("sets=none").evals
    with pytest.raises(UserError, match="'scifcat'"):
        dpr_msmarco.get_config("sets=scifcat")


@pytest.mark.parametrize("titles", [True, False])
@pytest.mark.parametrize("column", ["answer", "title"])
def test_beir_flag_adds_evaluators(tmp_path: Path, column: str, titles: bool) -> None:
    """The records have the columns that the model's fields read."""
    write_beir(tmp_path, ("scifact",), titles)
    fields = lexical_texts()
    fields["fields"]["query"].column = "question"
    fields["fields"]["document"].column = column
    config = tiny(**fields, data=recipe.entry(configs.GradedScenes()))
    made = BeirOptions(beir=str(tmp_path), beir_sets=("scifact",)).add_evaluators(config)
    assert set(made.evals) == {*config.evals, "scifact"}
    assert made.evals["scifact"].modes == ("bag",)
    source: Any = make_source(made.evals["scifact"].data)
    assert texts_of(source.queries, 1, "question") == ("w1 w4",)
    assert texts_of(source.documents, 0, column)[0].startswith("scifact w")


def test_beir_rejects_models_of_images() -> None:
    with pytest.raises(UserError, match=r"document field, .* image"):
        with_beir(tiny(), "beir")


def test_config_with_all_sets_passes_the_checks(tmp_path: Path) -> None:
    check(configs.load(vdr_t2t_msmarco.get_config("runlocal")), trains=False)
    full = configs.load(vdr_t2t_msmarco.get_config(f"beir={tmp_path}"))
    assert {part.modes for part in full.evals.values()} == {("bag",)}
