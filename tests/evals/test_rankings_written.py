"""Run files against trec_eval, and comparisons of two systems."""

import errno
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from scipy import stats

from big_retrieval.commands import compare
from big_retrieval.config import Geometry, Ranking
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.tables import Rows
from big_retrieval.data.judged.qrels import Qrels
from big_retrieval.errors import UserError
from big_retrieval.evals import comparison
from big_retrieval.evals import evaluators as evals
from big_retrieval.evals.bm25 import Bm25Ranking
from big_retrieval.evals.comparison import values_of_run
from big_retrieval.evals.modes import SIDES
from big_retrieval.evals.ranking import encode_side
from big_retrieval.evals.rankings import read_values
from big_retrieval.evals.trec import RunWriter, read_qrels, read_run
from big_retrieval.runtime.extras import Extras
from big_retrieval.similarity import TOPOLOGIES
from tests.evals.bound import Bound, bound
from tests.evals.test_ranking_evaluator import SPECS, Preset, source

METRICS = ("nDCG@10", "nDCG", "MRR@10", "MAP@20", "R@10", "R@100", "P@5")
MEASURES = {
    "nDCG@10": "ndcg_cut_10", "nDCG": "ndcg", "MRR@10": "recip_rank", "MAP@20": "map_cut_20",
    "R@10": "recall_10", "R@100": "recall_100", "P@5": "P_5",
}  # fmt: skip


def judged() -> Any:
    """The pairs of the ranking evaluator's tests, with relevance that trec_eval accepts."""
    pairs = source()
    qrels = pairs.qrels
    pairs.qrels = Qrels(qrels.query, qrels.document, np.ceil(qrels.score / 30) - 1)
    return pairs


def evaluator(**changes: Any) -> Bound:
    keys: dict[str, Any] = {"metrics": METRICS, "depth": 25, "chunk": 4, "rankings": True}
    return bound(Ranking(**(keys | changes)), judged(), SPECS, TOPOLOGIES["sphere"], Preset())


def assert_equals_trec_eval(
    queries: list[str], values: Any, qrels: Any, run: Any, skipped: Sequence[str] = ()
) -> None:
    """Compares values by query with trec_eval's values; a query without a ranking has 0."""
    names = {"ndcg_cut.10", "ndcg", "recip_rank", "map_cut.20", "recall.10,100", "P.5"}
    rows = pytrec_eval.RelevanceEvaluator(qrels, names).evaluate(run)
    short = {q: dict(sorted(d.items(), key=lambda x: (x[1], x[0]))[-10:]) for q, d in run.items()}
    first = pytrec_eval.RelevanceEvaluator(qrels, names).evaluate(short)  # trec_eval has no MRR@10
    for metric in {*METRICS} - {*skipped}:
        table = first if metric == "MRR@10" else rows
        expected = [table.get(query, {}).get(MEASURES[metric], 0.0) for query in queries]
        np.testing.assert_allclose(values[metric], expected, atol=1e-9, err_msg=metric)


def test_ranking_writes_a_run_that_agrees_with_trec_eval(tmp_path: Path) -> None:
    evaluators = {"ranking/a b": evaluator(documents=("title",))}
    found = evals.run(evaluators, evaluators, {}, None, tmp_path)
    folder = tmp_path / "ranking-a-b"
    assert {path.name for path in folder.iterdir()} == {"run.trec", "queries.csv"}
    run = {query: dict(documents) for query, documents in read_run(folder / "run.trec").items()}
    qrels: dict[str, dict[str, int]] = {}
    j = judged().qrels
    for q, d, s in zip(j.query.tolist(), j.document.tolist(), j.score.tolist(), strict=True):
        qrels.setdefault(str(q), {})[str(d)] = int(s)
    queries, values = read_values(folder / "queries.csv")
    assert set(queries) == set(qrels)
    assert set(values) == {*METRICS, *(f"title/{metric}" for metric in METRICS)}
    assert_equals_trec_eval(queries, values, qrels, run)
    for metric, column in values.items():  # includes the other weighting
        assert found[f"ranking/a b/{metric}"] == pytest.approx(np.mean(column))


@pytest.mark.parametrize("method", ["__enter__", "add", "__exit__"])
def test_run_continues_without_unwritable_rankings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, said: list[str]
) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    evaluators = {"ranking/x": evaluator()}
    expected = evals.run(evaluators, evaluators, {}, None, tmp_path / "written")
    monkeypatch.setattr(RunWriter, method, full)
    assert evals.run(evaluators, evaluators, {}, None, tmp_path, Extras()) == expected
    (warning,) = [line for line in said if "warning" in line]
    assert f"{tmp_path.name}/ranking-x is not written (No space left on device)" in warning
    with pytest.raises(OSError, match="No space left"):
        evals.run(evaluators, evaluators, {}, None, tmp_path)


def test_rankings_are_written_only_on_request(tmp_path: Path) -> None:
    evaluators = {"ranking/x": evaluator(rankings=False)}
    evals.run(evaluators, evaluators, {}, None, tmp_path)
    assert not list(tmp_path.iterdir())
    other: Any = {"other": bound(Geometry(), None, {}, None, None)}
    assert evals.with_rankings(evaluators | other)["ranking/x"].part.rankings
    with pytest.raises(UserError, match="--rankings: no evaluator has values by query"):
        evals.with_rankings(other)


def test_bm25_writes_ids_with_blanks(tmp_path: Path) -> None:
    class Named(Records):
        def id(self, index: int) -> str:
            return f"number {index}"

    documents = [{"text": f"word{i} common"} for i in range(4)]
    pairs: Any = SimpleNamespace(
        queries=Named(Rows([{"query": "word2 common"}], "q"), image=(), text=""),
        documents=Named(Rows(documents, "d"), image=(), text=""),
        qrels=Qrels(np.array([0]), np.array([2]), np.array([1.0])),
    )
    columns = {"query": ("query",), "document": ("text",)}
    part = Bm25Ranking(metrics=("MRR",), rankings=True, columns=columns)
    bound(part, pairs, {}, None, None).run({}, rankings=tmp_path)
    assert read_run(tmp_path / "run.trec")["number 0"][0][0] == "number 2"
    assert read_values(tmp_path / "queries.csv")[0] == ["number 0"]


def test_values_of_run_equal_trec_eval_with_ties_and_missing_queries(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    qrels: Any = {
        f"q{i}": {f"d{d}": int(rng.integers(0, 4)) for d in rng.choice(40, 12, replace=False)}
        for i in range(20)
    }
    run = {
        f"q{i}": {f"d{d}": float(rng.integers(0, 6)) for d in rng.choice(40, 30, replace=False)}
        for i in range(18)
    }
    lines = [f"{q}\t0\t{d}\t{g}\n" for q, found in qrels.items() for d, g in found.items()]
    (tmp_path / "test.qrels").write_text("".join(lines))
    (tmp_path / "beir.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(lines).replace("\t0\td", "\td")
    )
    for name in ("test.qrels", "beir.tsv"):
        assert read_qrels(tmp_path / name) == qrels
    rankings = {query: list(found.items()) for query, found in run.items()}
    assert_equals_trec_eval(*values_of_run(rankings, qrels, METRICS), qrels, run)
    with pytest.raises(UserError, match="no query of the run is judged"):
        values_of_run({"other": [("d1", 1.0)]}, qrels, METRICS)


def test_scores_equal_in_float32_tie_as_in_trec_eval(tmp_path: Path) -> None:
    text = "q Q0 a 1 1.00000002 x\nq Q0 b 2 1.00000001 x\nr Q0 a 1 2e300 x\nr Q0 b 2 1e300 x\n"
    (tmp_path / "run.trec").write_text(text)
    run, qrels = read_run(tmp_path / "run.trec"), {"q": {"a": 1}, "r": {"a": 1}}
    queries, values = values_of_run(run, qrels, METRICS)  # type: ignore
    scores = {query: dict(ranking) for query, ranking in run.items()}
    # The helper selects ten documents by the scores in float64.
    assert_equals_trec_eval(queries, values, qrels, scores, skipped=["MRR@10"])
    assert values["nDCG@10"].tolist() == pytest.approx([1 / np.log2(3)] * 2)
    assert values["MRR@10"].tolist() == [0.5, 0.5]


def test_scores_of_rankings_are_float32() -> None:
    """A run file has the order of the evaluator."""
    part, context = bound(Ranking(depth=5), judged(), SPECS, TOPOLOGIES["sphere"], Preset())
    queries, documents = (encode_side(context, {}, side) for side in SIDES)
    embeddings = queries.embeddings["query"]
    (ranked,) = part.rank(context, embeddings, queries, documents, {"image": 1.0})
    assert ranked.scores.dtype == np.float32


def test_values_of_run_reports_ids_of_only_one_file(said: list[str]) -> None:
    qrels = {"q1": {"d1": 1.0}, "q2": {"d2": 1.0}}
    values_of_run({"q1": [("d2", 1.0)]}, qrels, ["MRR"])  # no relevant document, but a judged one
    assert not any("warning" in line for line in said)
    assert values_of_run({"q1": [("corpus-1", 1.0)]}, qrels, ["MRR"])[1]["MRR"].tolist() == [0, 0]
    assert any("warning" in line and "'corpus-1'" in line for line in said)
    values_of_run({"q3": [("d1", 1.0)], "q2": [("d2", 1.0)]}, qrels, ["MRR"])
    assert "1 of 2 judged queries have no results and count 0" in said[-2]
    assert "1 of 2 queries of the run are not judged and not counted" in said[-1]


def test_compare_equals_scipy() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.random(30), rng.random(30)
    b[:4] = a[:4]
    found = comparison.compare(a, b)
    assert found.p == pytest.approx(stats.ttest_rel(b, a).pvalue)
    assert found.difference == pytest.approx(b.mean() - a.mean())
    assert (found.wins + found.losses, found.ties) == (26, 4)
    assert found.wins == (b > a).sum()
    assert comparison.compare(a, a).p == 1
    assert comparison.compare(a, a + 1e-15).ties == 30
    with pytest.raises(UserError, match="at least 2 queries"):
        comparison.compare(a[:1], b[:1])


@pytest.fixture
def command() -> Any:
    """Runs `big-retrieval compare` in this process: (words, flags)."""

    def run(*words: Any, **flags: Any) -> None:
        flags = {"metrics": ("MRR",), **{name.lower(): value for name, value in flags.items()}}
        compare.main(compare.CompareOptions(systems=tuple(map(str, words)), **flags))

    return run


def written(folder: Path, **values: float) -> Path:
    """Writes the values of MRR by query."""
    path = folder / "rankings" / "ranking-test" / "queries.csv"
    path.parent.mkdir(parents=True)
    path.write_text("query,MRR\n" + "".join(f"{q},{v}\n" for q, v in values.items()))
    return folder


def test_compare_folders(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = written(tmp_path / "a", x=0.5, y=0.25, z=1.0)
    b = written(tmp_path / "b", z=1.0, y=0.5, x=1.0)
    command(a, b, OUT=tmp_path / "table.csv")
    output = capsys.readouterr().out
    assert "ranking-test, 3 queries" in output
    p = stats.ttest_rel([1.0, 0.5, 1.0], [0.5, 0.25, 1.0]).pvalue
    line = next(line for line in output.splitlines() if line.startswith("  MRR"))
    assert line.split()[1:] == ["0.5833", "0.8333", "+0.2500", f"{p:.2g}", "2", "1", "0"]
    row = (tmp_path / "table.csv").read_text().splitlines()[1].split(",")
    assert row[:3] + row[-3:] == ["ranking-test", "MRR", "3", "2", "1", "0"]


def test_compare_prints_largest_gains(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = written(tmp_path / "a", x=0.5, y=0.25, z=1.0, w=0.0)
    b = written(tmp_path / "b", z=1.0, y=0.5, w=0.5, x=1.0)
    command(a, b, LARGEST="MRR:2")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "ranking-test, largest gains in MRR: --show=x,w (+0.5, +0.5)"
    with pytest.raises(UserError, match="metric 'R@1'"):
        command(a, b, LARGEST="R@1:2")
    with pytest.raises(UserError, match="--largest is METRIC:COUNT"):
        command(a, b, LARGEST="MRR")


def test_compare_modes(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = written(tmp_path / "a", x=0.5, y=0.25)
    path = written(tmp_path / "b") / "rankings" / "ranking-test" / "queries.csv"
    path.write_text("query,MRR,bag/MRR\nx,0,1\ny,0,0.75\n")
    command(a, tmp_path / "b", MODE_B="bag")
    assert "  0.3750   0.8750   +0.5000" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"a has no mode 'bag'; it has: none"):
        command(a, tmp_path / "b", MODE_A="bag")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("query,MRR\nx,1\ny,0\nz,nan\n", "row 3: a value of query 'z'"),
        ("query,MRR\nx,1\ny,0\nx,1\n", "has query 'x' twice"),
        ("query,R@10,nDCG@5\nx,1,1\ny,0,0\n", "no metric in common: .*a has MRR; .*b has R@10"),
    ],
)
def test_compare_rejects_tables(command: Any, tmp_path: Path, table: str, message: str) -> None:
    a, b = written(tmp_path / "a", x=0.5, y=0.25), written(tmp_path / "b")
    (b / "rankings" / "ranking-test" / "queries.csv").write_text(table)
    with pytest.raises(UserError, match=message):
        command(a, b)


def test_compare_run_files(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, scores in (("a", (1, 2)), ("b", (2, 1))):
        lines = [f"{q} Q0 d{d} 1 {s} t\n" for q in "xy" for d, s in enumerate(scores)]
        (tmp_path / f"{name}.trec").write_text("".join(lines))
    (tmp_path / "qrels").write_text("x 0 d0 1\ny 0 d0 1\n")
    command(tmp_path / "a.trec", tmp_path / "b.trec", QRELS=tmp_path / "qrels")
    assert "  0.5000   1.0000   +0.5000" in capsys.readouterr().out
    (tmp_path / "other").write_text("z 0 d0 1\n")
    with pytest.raises(UserError, match=r"a\.trec: no query of the run is judged"):
        command(tmp_path / "a.trec", tmp_path / "b.trec", QRELS=tmp_path / "other")


@pytest.mark.parametrize(
    ("words", "flags", "message"),
    [
        (["a"], {}, "needs two systems"),
        (["a", "empty"], {}, "empty has no rankings/<evaluator>/queries.csv"),
        (["a", "nowhere"], {}, "nowhere. Give two folders"),
        (["a", "image_text"], {}, "ranking-test and retrieval-test-text_to_image"),
        (["run", "a"], {"QRELS": Path("file")}, "a is a folder"),
        (["a", "other"], {}, "2 queries are in only one of the two, such as 'w' in"),
        (["run", "a"], {}, "For run files, add --qrels"),
        (["run", "run"], {"QRELS": Path("file"), "MODE_A": "bag"}, "are for folders"),
        (["run", "run"], {"QRELS": Path("missing")}, "missing"),
        (["run", "run"], {"METRICS": ["ndcg@10"], "QRELS": Path("qrels")}, "'nDCG@10'"),
        (["run", "run"], {"METRICS": ["ndcg@10"], "QRELS": Path("missing")}, "'nDCG@10'"),
    ],
)
def test_compare_rejects(
    command: Any, tmp_path: Path, words: list[str], flags: dict[str, Any], message: str
) -> None:
    written(tmp_path / "a", x=0.5, y=0.25)
    written(tmp_path / "other", y=0.5, w=1.0)
    (tmp_path / "run").write_text("x Q0 d0 1 2.0 t\n")
    (tmp_path / "qrels").write_text("x 0 d0 1\n")
    (tmp_path / "empty").mkdir()
    written(tmp_path / "image_text", y=0.5).joinpath("rankings", "ranking-test").rename(
        tmp_path / "image_text" / "rankings" / "retrieval-test-text_to_image"
    )
    if "QRELS" in flags:
        flags = {**flags, "QRELS": tmp_path / flags["QRELS"]}
    with pytest.raises(UserError) as caught:
        command(*(tmp_path / word for word in words), **flags)
    assert message in str(caught.value)


@pytest.mark.slow
def test_training_writes_rankings_only_at_its_end(tmp_path: Path) -> None:
    from big_retrieval.train.loop import train
    from tests.test_evaluate import graded

    config = graded(total_steps=2, eval_every=1, report=False)
    part = Ranking(**{**config.evals["in_domain"].__dict__, "rankings": True})
    object.__setattr__(config, "evals", {"in_domain": part})
    train(config, tmp_path)
    (path,) = (tmp_path / "rankings").glob("*/queries.csv")
    _, values = read_values(path)
    results = json.loads((tmp_path / "results.json").read_text())
    for name, column in values.items():
        assert results[f"ranking/in_domain/{name}"] == pytest.approx(column.mean())
