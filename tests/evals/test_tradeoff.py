"""`benchmarks.tradeoff`: the results of an index have the metrics of the evaluator."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import tradeoff, tradeoff_systems
from benchmarks.tradeoff_systems import System
from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.data.judged.qrels import Qrels
from big_retrieval.data.synthetic.graded_scenes import GradedScenes
from big_retrieval.evals.judged import JudgedQueries
from big_retrieval.evals.modes import parse_mode
from big_retrieval.evals.positives import Positives
from big_retrieval.train.build import untrained
from big_retrieval.train.checkpoint import write_model
from tests.evals.bound import bound
from tests.evals.test_lexical_evals import (
    CAPTIONS,
    COLUMNS,
    IMAGE,
    INNER,
    SCENES,
    SPECS,
    TEXT,
    Preset,
)  # fmt: skip
from tests.helpers import ROOT, environment, lexical_texts, tiny

WIDTH = len(COLUMNS)


def values(seed: int, rows: int) -> np.ndarray:
    """Positive values, so that searches find all documents, except with bags of words."""
    return np.random.default_rng(seed).gamma(2, 0.5, (rows, WIDTH)).astype(np.float32)


def searched(folder: Path, system: System) -> dict[tuple[str, str], dict[str, float]]:
    """Metrics of all points, by gates of queries and documents."""
    times = {"network": 0.0, "words": 0.0}
    points, calls = tradeoff.points_of("a model", system, times, "inner", folder)
    for call in calls:
        assert len(call(0)) == 2
    return {(x["queries"], x["documents"]): x["metrics"] for x in points}


def gates() -> Any:
    modes = {
        "query": {"bag": "bag", "2": "top_k=2/all", "all": "top_k=all"},
        "document": {"binary": "binary", "5": "top_k=all/5", "all": "top_k=all"},
    }
    return {
        side: {name: parse_mode(text, "") for name, text in of_side.items()}
        for side, of_side in modes.items()
    }


def test_judged_system_has_the_metrics_of_the_evaluator(tmp_path: Path) -> None:
    source = GradedScenes(split="in_domain", size=16, count=40).build()
    query, title = values(0, len(source.queries)), values(1, len(source.documents))
    modes = ("bag", "binary", "top_k=2/all", "top_k=2/5", "top_k=all/5")
    task = configs.Ranking(metrics=("nDCG@10", "MRR", "R@5"), modes=modes)
    encoder = Preset(query=query, title=title)
    evaluator = bound(task, source, SPECS, INNER, encoder, name="test")
    wanted = evaluator.run({})
    subject = tradeoff_systems.judged_system(*evaluator, {}, gates())
    assert subject.depth == 1000
    found = searched(tmp_path, subject)
    same = {"bag": ("bag", "all"), "top_k=2/all": ("2", "all"), "": ("all", "all")}
    same |= {"top_k=all/5": ("all", "5")}
    for mode, name in same.items():  # every document shares a column with every query
        for metric, value in found[name].items():
            assert value == pytest.approx(wanted[f"{mode}/{metric}".lstrip("/")]), name
    for metric in task.metrics:  # here some do not, which ranks them last or leaves them out
        for mode, name in (("binary", ("all", "binary")), ("top_k=2/5", ("2", "5"))):
            assert found[name][metric] == pytest.approx(wanted[f"{mode}/{metric}"], abs=0.02)
    assert len(found) == 9
    assert len({tuple(metrics.values()) for metrics in found.values()}) == 9
    assert len(subject.samples["query"] or ()) == min(len(source.queries), tradeoff.SAMPLE)


def test_paired_system_has_the_recalls_of_the_evaluator(tmp_path: Path) -> None:
    text, image = values(2, len(CAPTIONS)), values(3, 9)
    task = configs.Retrieval(recall_at=(1, 3), modes=("bag", "top_k=2/5"))
    specs = {"image": IMAGE, "text": TEXT}
    encoder = Preset(text=text, image=image)
    evaluator = bound(task, SCENES, specs, INNER, encoder, name="test")
    wanted = evaluator.run({})
    some = gates()
    del some["document"]["binary"]
    subject = tradeoff_systems.paired_system(*evaluator, {}, some)
    assert subject.depth == 3
    found = searched(tmp_path, subject)
    for mode, name in (("bag/", ("bag", "all")), ("top_k=2/5/", ("2", "5")), ("", ("all", "all"))):
        for metric, value in found[name].items():
            close: Any = {"abs": 0.05} if name == ("2", "5") else {}  # not every image is found
            assert value == pytest.approx(wanted[f"{mode}text_to_image/{metric}"], **close)


def test_scorers_of_missing_documents_and_ties() -> None:
    found = np.array([[4, 5, -1], [6, -1, -1], [-1, -1, -1]])
    scores = np.array([[2.0, 2.0, -np.inf], [1.0, -np.inf, -np.inf], [-np.inf] * 3])
    qrels = Qrels(np.arange(3), np.array([4, 6, 4]), np.full(3, 5.0))
    source: Any = SimpleNamespace(queries=range(3), documents=range(7), qrels=qrels)
    judged = JudgedQueries(configs.Ranking(metrics=("MRR",)), source)
    # The positive of the first query ties with a negative; the third query has no text.
    metrics = tradeoff_systems.judged_scores(judged, found, scores)
    assert metrics["MRR"] == pytest.approx((1 / 2 + 1 + 0) / 3)
    found, scores[2] = np.array([[0, 1, -1], [2, -1, -1], [0, 1, 2]]), [3, 2, 1]
    positives = Positives(np.array([7, 8, 9]), np.array([7, 5, 8]))
    scorer = tradeoff_systems.recall_scorer((1, 2), positives)
    assert scorer(found, scores) == {"R@1": pytest.approx(1 / 3), "R@2": pytest.approx(2 / 3)}


def save(folder: Path, *, lexical: bool) -> None:
    """Writes a checkpoint of a tiny untrained model of queries and titles."""
    changes = lexical_texts(terms="words", top_k=9, keep_input_terms=True)
    for name, column in (("query", "query"), ("document", "title")):
        changes["fields"][name].column = column
        if not lexical:
            changes["fields"][name].head = recipe.entry(configs.Projection(dim=4))
    for tower in changes["towers"].values():
        tower.pool = "none" if lexical else "mean"
    data = recipe.entry(configs.GradedScenes(), count=40, size=16)
    ranking = recipe.entry(configs.Ranking(), metrics=("nDCG@10", "MRR"))
    ranking.data = data
    config = tiny(**changes, data=data, evals={"test": ranking})
    write_model(untrained(config, batch_size=64), folder)


@pytest.mark.slow
def test_tradeoff_draws_two_models_and_bm25(tmp_path: Path) -> None:
    for name in ("vdr", "dpr"):
        save(tmp_path / name, lexical=name == "vdr")
    both = f"--run={tmp_path / 'vdr'},{tmp_path / 'dpr'}"
    gates = ["--queries=bag,3,all", "--documents=binary,all", "--limit=8", "--rounds=2"]
    out = tmp_path / "a.svg"
    flags = [both, "--eval=test", "--bm25", "--json", *gates, f"--out={out}"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tradeoff", *flags], cwd=ROOT, env=environment(),
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    points = json.loads(done.stdout.splitlines()[-1])["points"]
    assert [(Path(x["model"]).name, x["queries"], x["documents"]) for x in points] == [
        *(("vdr", *reversed(x)) for x in itertools.product(("binary", "all"), ("bag", "3", "all"))),
        ("dpr", "exact", "exact"), ("BM25", "bm25", "bm25"),
    ]  # fmt: skip
    assert all(x["search_ms"] > 0 and x["encoding_ms"] > 0 for x in points)
    assert "<svg" in out.read_text()
