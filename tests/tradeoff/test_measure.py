"""Sweeps: what an index finds has the evaluator's own numbers; the command; its page."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from big_retrieval import config as configs
from big_retrieval.config import Config, recipe
from big_retrieval.data.build import make_source
from big_retrieval.data.judged.qrels import Qrels
from big_retrieval.data.synthetic.graded_scenes import GradedScenes
from big_retrieval.errors import UserError
from big_retrieval.evals.bags import in_mode
from big_retrieval.evals.bm25 import make_bm25_evaluators
from big_retrieval.evals.judged import JudgedQueries
from big_retrieval.evals.modes import parse_mode
from big_retrieval.evals.positives import Positives
from big_retrieval.inference.saved import find, read_config
from big_retrieval.tradeoff import average, latency, measure, page, systems
from big_retrieval.tradeoff.gates import WHOLE
from big_retrieval.tradeoff.latency import LatencyJob, measure_latency, one_thread, time_in_turn
from big_retrieval.tradeoff.settings import build, settings_of
from big_retrieval.train.build import untrained
from big_retrieval.train.checkpoint import write_model
from tests.evals.bound import bound
from tests.evals.test_beir import write_beir
from tests.evals.test_lexical_evals import (
    CAPTIONS,
    COLUMNS,
    FIELDS,
    IMAGE,
    INNER,
    SCENES,
    SPECS,
    TEXT,
    Preset,
)  # fmt: skip
from tests.helpers import ROOT, command, environment, in_process, lexical_texts, tiny

WIDTH = len(COLUMNS)


def values(seed: int, rows: int) -> np.ndarray:
    """Positive everywhere, so that all documents are found but by bags of words."""
    return np.random.default_rng(seed).gamma(2, 0.5, (rows, WIDTH)).astype(np.float32)


def searched(folder: Path, system: systems.System) -> dict[tuple[str, str], dict[str, float]]:
    """The metrics of all settings, by gates of queries and documents, without timing any model."""
    settings = settings_of("a model", system, folder, "index")
    job = LatencyJob([(x.queries, x.index) for x in settings], [], system.task.depth, [0, 3], 1)
    result = measure_latency(job, folder)
    assert result.encodings == []
    assert result.seconds.shape == (len(settings), 2)
    return {
        (x.known["query"], x.known["document"]): x.scorer(*found)
        for x, found in zip(settings, result.found, strict=True)
    }


def gates() -> Any:
    whole = WHOLE
    return {
        "query": {
            "bag": parse_mode("bag", ""), "2": parse_mode("top_k=2/all", ""), "all": whole
        },
        "document": {
            "binary": parse_mode("binary", ""), "5": parse_mode("top_k=all/5", ""), "all": whole
        },
    }  # fmt: skip


def test_rankings_have_the_evaluators_numbers(tmp_path: Path) -> None:
    source = GradedScenes(split="in_domain", size=16, count=40).build()
    query, title = values(0, len(source.queries)), values(1, len(source.documents))
    modes = ("bag", "binary", "top_k=2/all", "top_k=2/5", "top_k=all/5")
    task = configs.Ranking(metrics=("nDCG@10", "MRR", "R@5"), modes=modes)
    encoder = Preset(query=query, title=title)
    evaluator = bound(task, source, SPECS, INNER, encoder, name="test")
    wanted = evaluator.run({})
    config = Config(fields=FIELDS, evals={"test": task}, topology="inner")
    subject = systems.judged_system(*evaluator, {}, config, gates())
    assert (subject.task.depth, subject.task.documents) == (1000, len(source.documents))
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
    assert len({tuple(each.values()) for each in found.values()}) == 9
    assert len(subject.samples["query"] or ()) == min(len(source.queries), latency.SAMPLE)


def test_quality_is_the_weighted_average_of_several_evaluators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, made = [], []
    some: Any = {"query": {"2": parse_mode("top_k=2/all", ""), "all": WHOLE}}
    for number, recall_at in enumerate(((1, 3), (3, 1, 5))):
        rows = {"query": sparse.csr_array(values(number, 7)), "document": values(5, 9)}
        rows["document"] = sparse.csr_array(rows["document"])
        names = tuple(f"R@{k}" for k in recall_at)
        made.append(
            systems.System(
                systems.SearchTask(str(number), names, 5, 7, 9), "inner",
                {**some, "document": {"all": WHOLE}},
                lambda side, mode, rows=rows: in_mode(rows[side], mode, side, None),
                systems.recall_scorer(recall_at, Positives(np.arange(7), np.arange(9))), {},
            )
        )  # fmt: skip
        (tmp_path / str(number)).mkdir()
        found.append(searched(tmp_path / str(number), made[-1]))
    monkeypatch.setattr(average, "in_a_child", measure_latency)
    averages = average.average_of(zip((1.0, 3.0), made, strict=True), tmp_path)
    assert len(averages) == 2
    for gate, each in zip(found[0], averages, strict=True):
        assert each == pytest.approx(
            {n: (found[0][gate][n] + 3 * found[1][gate][n]) / 4 for n in ("R@1", "R@3")}
        )
    assert not (tmp_path / "averaged").exists()
    with pytest.raises(UserError, match="--average is over evaluators with traffic"):
        average.check_average(Config(evals={"a": configs.Ranking()}), "a", "MRR")
    with pytest.raises(UserError, match=r"--average: evals\.a does not measure P@3"):
        average.check_average(Config(evals={"a": configs.Ranking(traffic=1)}), "a", "P@3")


def test_retrieval_of_images_has_the_evaluators_recalls(tmp_path: Path) -> None:
    text, image = values(2, len(CAPTIONS)), values(3, 9)
    task = configs.Retrieval(recall_at=(1, 3), modes=("bag", "top_k=2/5"))
    specs = {"image": IMAGE, "text": TEXT}
    encoder = Preset(text=text, image=image)
    evaluator = bound(task, SCENES, specs, INNER, encoder, name="test")
    wanted = evaluator.run({})
    some = gates()
    del some["document"]["binary"]
    subject = systems.paired_system(*evaluator, {}, Config(topology="inner"), some)
    assert (subject.task.title, subject.task.depth) == ("test (text to image)", 3)
    found = searched(tmp_path, subject)
    for mode, name in {
        "bag/": ("bag", "all"),
        "top_k=2/5/": ("2", "5"),
        "": ("all", "all"),
    }.items():
        for metric, value in found[name].items():
            close: Any = {"abs": 0.05} if name == ("2", "5") else {}  # not every image is found
            assert value == pytest.approx(wanted[f"{mode}text_to_image/{metric}"], **close)


def test_what_is_not_found_and_what_ties() -> None:
    found = np.array([[4, 5, -1], [6, -1, -1], [-1, -1, -1]])
    scores = np.array([[2.0, 2.0, -np.inf], [1.0, -np.inf, -np.inf], [-np.inf] * 3])
    qrels = Qrels(np.arange(3), np.array([4, 6, 4]), np.full(3, 5.0))
    source: Any = SimpleNamespace(queries=range(3), documents=range(7), qrels=qrels)
    judged = JudgedQueries(configs.Ranking(metrics=("MRR",)), source)
    # The first's right document ties with a wrong one; the third query has no text.
    metrics = systems.judged_scores(judged, found, scores)
    assert metrics["MRR"] == pytest.approx((1 / 2 + 1 + 0) / 3)
    found, scores[2] = np.array([[0, 1, -1], [2, -1, -1], [0, 1, 2]]), [3, 2, 1]
    positives = Positives(np.array([7, 8, 9]), np.array([7, 5, 8]))
    scorer = systems.recall_scorer((1, 2), positives)
    assert scorer(found, scores) == {"R@1": pytest.approx(1 / 3), "R@2": pytest.approx(2 / 3)}


def test_dense_points_are_searched_exactly(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    queries, documents = (rng.normal(size=(n, 1, 6)).astype(np.float32) for n in (4, 9))
    size = build(tmp_path / "index", documents, "inner")
    assert size["document_entries"] == 6
    assert size["index_bytes"] > 4 * 9 * 6
    ((numbers, _),) = measure_latency(
        LatencyJob([(queries, "index")], [], 20, [0], 1), tmp_path
    ).found
    order = np.argsort(-(queries[:, 0] @ documents[:, 0].T), axis=1)
    np.testing.assert_array_equal(numbers[:, :9], order)
    assert (numbers[:, 9:] == -1).all()


def test_indexes_of_bags_store_no_values(tmp_path: Path) -> None:
    rows = sparse.csr_array((values(0, 30) > 1).astype(np.float32))
    bags, half = (build(tmp_path / n, x, "") for n, x in (("a", rows), ("b", rows * 0.5)))
    assert bags["document_entries"] == half["document_entries"] == rows.nnz / 30
    assert half["index_bytes"] - bags["index_bytes"] == pytest.approx(4 * rows.nnz, abs=256)


def test_searches_take_turns() -> None:
    calls: list[tuple[str, int]] = []
    searches: list[Callable[[int], Any]] = [
        lambda q, name=name: calls.append((name, q)) for name in ("a", "b")
    ]
    assert time_in_turn(searches, [4, 2], 3).shape == (2, 2)
    assert calls == [("a", 4), ("a", 2), ("b", 4), ("b", 2)] * 3


def test_one_thread() -> None:
    given = {"XLA_FLAGS": "--a=1 --xla_force_host_platform_device_count=8", "NPROC": "16", "X": "y"}
    found = one_thread(given)
    assert found["XLA_FLAGS"].startswith("--a=1")
    assert "device_count" not in found["XLA_FLAGS"]
    assert (found["NPROC"], found["OMP_NUM_THREADS"], found["X"]) == ("1", "1", "y")


def report() -> dict[str, Any]:
    """A report of a lexical and a dense model, with names that need escaping."""
    points = [
        {
            "model": model, "lexical": model != "dpr", "query": query, "document": document,
            "query_entries": 7.5, "document_entries": 20.0, "index_bytes": 2**20,
            "metrics": {"MRR": 0.1 * number + 0.1, "R@5": 0.5}, "encoding_ms": 1.5,
            "search_ms": {"mean": 0.1 * (number + 1), "p50": 0.1, "p95": 0.2},
            "latency_ms": 1.6 + number,
        }
        for number, (model, query, document) in enumerate([
            ("<vdr>", "bag", "64"), ("<vdr>", "16", "64"), ("<vdr>", "bag", "all"),
            ("<vdr>", "16", "all"), ("dpr", "exact", "exact"),
        ])
    ]  # fmt: skip
    where = {"cpu": "a chip", "cores": 2, "threads": 1, "device": "cpu", "platform": "p"}
    return {
        "evaluator": "test", "metric": "MRR", "metrics": ["MRR", "R@5"], "queries": 30, "timed": 20,
        "rounds": 5, "documents": 40, "depth": 1000, "models": {"<vdr>": {}, "dpr": {}},
        "machine": {**where, "python": "3", "numpy": "2", "jax": "0"}, "points": points,
    }  # fmt: skip


def test_the_files_hold_every_setting(tmp_path: Path) -> None:
    page.write(report(), tmp_path)
    html = (tmp_path / "tradeoff.html").read_text()
    assert html.count("<figure") == 2
    assert html.count("<tr>") == 1 + 5
    assert "&lt;vdr&gt;, documents: 64 terms, 16: 0.2000 ms, MRR 0.2000" in html
    assert "<vdr>" not in html
    for outside in ("http:", "https:", "<script", "<link", "url("):
        assert outside not in html
    lines = (tmp_path / "tradeoff.md").read_text().splitlines()
    assert "30 queries against 40 documents, the best 40 for each" in lines[2]
    rows = [line.split(" | ") for line in lines if line.startswith("| ")]
    assert rows[0][:5] == ["| model", "queries", "documents", "MRR", "R@5"]
    assert rows[6][:5] == ["| dpr", "exact", "exact", "0.5000", "50.0%"]
    assert json.loads((tmp_path / "tradeoff.json").read_text()) == report()


# ---- With models


def save(folder: Path, *, lexical: bool) -> None:
    """A checkpoint of a tiny model of queries and titles; its parameters do not matter here."""
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
def test_the_command(tmp_path: Path) -> None:
    """Two models in one plot, from checkpoints to a page; and what it refuses."""
    for name in ("vdr", "dpr"):
        save(tmp_path / name, lexical=name == "vdr")
    both = f"--run={tmp_path / 'vdr'},{tmp_path / 'dpr'}"
    flags = ["--queries=bag,3,all", "--documents=binary,all", "--limit=8", "--rounds=2"]
    done = in_process("tradeoff", both, f"--out={tmp_path / 'out'}", "--bm25", *flags)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "tradeoff.html", "tradeoff.json", "tradeoff.md",
    }  # fmt: skip
    found = json.loads((tmp_path / "out" / "tradeoff.json").read_text())
    assert (found["metric"], found["depth"], found["timed"]) == ("nDCG@10", 1000, 8)
    assert [(p["query"], p["document"]) for p in found["points"]] == [
        ("bag", "binary"), ("3", "binary"), ("all", "binary"), ("bag", "all"), ("3", "all"),
        ("all", "all"), ("exact", "exact"), ("bm25", "bm25"),
    ]  # fmt: skip
    for point in found["points"]:
        assert point["search_ms"]["mean"] > 0
        assert point["latency_ms"] == point["search_ms"]["mean"] + point["encoding_ms"]
    taken = found["models"]["vdr"]
    assert [p["encoding_ms"] for p in found["points"][:2]] == [
        taken["words_ms"],
        taken["network_ms"],
    ]
    assert found["models"]["dpr"]["words_ms"] == 0
    write_beir(tmp_path / "beir", ("scifact", "fiqa"))
    sets = [f"--beir={tmp_path / 'beir'}", "--beir_sets=scifact,fiqa"]
    timed = ["--eval=test", "--average", "--limit=2", "--rounds=1", *sets]
    done = in_process("tradeoff", f"--run={tmp_path / 'dpr'}", f"--out={tmp_path / 'avg'}", *timed)
    assert done.returncode == 0, done.stderr
    (point,) = json.loads((tmp_path / "avg" / "tradeoff.json").read_text())["points"]
    evaluated = in_process("evaluate", f"--run={tmp_path / 'dpr'}", *sets)
    assert evaluated.returncode == 0, evaluated.stderr
    known = json.loads((tmp_path / "dpr" / "evaluation.json").read_text())
    mean = np.mean([known[f"ranking/{name}/nDCG@10"] for name in ("scifact", "fiqa")])
    assert point["metrics"]["nDCG@10"] == pytest.approx(mean, abs=1e-3)
    assert known["ranking/traffic/nDCG@10"] == pytest.approx(mean)
    exact = found["points"][-2]["metrics"]
    assert exact == pytest.approx({n: known[f"ranking/test/{n}"] for n in exact}, abs=1e-3)
    bm25 = found["points"][-1]
    assert bm25["encoding_ms"] == found["models"]["BM25"]["words_ms"] > 0
    config = read_config(find(str(tmp_path / "dpr")))
    source = make_source(config.evals["test"].data)
    ((part, context),) = make_bm25_evaluators(config, {"test": source})[0].values()
    for name, value in part.run(context, None).items():  # there ties do not count against it
        assert 0 < bm25["metrics"][name] <= value + 1e-6
    again = subprocess.run(
        command("tradeoff", both, f"--out={tmp_path / 'out'}"), cwd=ROOT, env=environment(),
        capture_output=True, text=True,
    )  # fmt: skip
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "exists and is not empty; give a new folder" in again.stderr
    options = measure.TradeoffOptions
    for wrong, words in (
        (options([]), "--run is missing"),
        (options([str(tmp_path / "dpr")], queries=("bag",)), "--queries names gates of lexical"),
        (options([str(tmp_path / "vdr")], metric="ERR"), r"--metric is 'ERR'.*has: nDCG@10, MRR"),
        (options([str(tmp_path / "vdr")], evaluator="tset"), "--eval is 'tset'.*that rank: test"),
        (options([str(tmp_path / "vdr")], documents=("10",)), "own gate leaves 9 terms"),
        (options([str(tmp_path / "nothing")]), "is no folder"),
    ):
        with pytest.raises(UserError, match=words):
            measure.check(wrong)


def test_which_evaluator() -> None:
    one = Config(evals={"a": configs.Ranking(), "b": configs.ZeroShot()})
    assert systems.choose(one, "") == "a"
    two = Config(evals={"a": configs.Ranking(), "c": configs.Retrieval()})
    assert systems.choose(two, "c") == "c"
    for config, name, words in (
        (two, "", r"--eval is missing: which of the run's evaluators \(a, c\)"),
        (one, "b", "which classifies; name one that ranks: a"),
        (one, "x", "which config.evals lacks"),
        (Config(evals={}), "", r"\(none\)"),
    ):
        with pytest.raises(UserError, match=words):
            systems.choose(config, name)


def test_what_models_are_called() -> None:
    assert measure.named(["runs/vdr", "runs/dpr/checkpoints/150"]) == ["vdr", "dpr"]
    assert measure.named(["vdr/seed_0", "dpr/seed_0"]) == ["vdr/seed_0", "dpr/seed_0"]
    with pytest.raises(UserError, match=r"names .*vdr twice"):
        measure.named(["runs/vdr", "runs/vdr/"])
