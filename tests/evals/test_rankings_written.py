"""Rankings as files: the evaluator's metrics are those of trec_eval on the run that it writes."""

import errno
import json
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
from tests.evals.bound import bound
from tests.evals.test_ranking_evaluator import SPECS, Preset, source

METRICS = ("nDCG@10", "nDCG", "MRR@10", "MAP@20", "R@10", "R@100", "P@5")
MEASURES = {
    "nDCG@10": "ndcg_cut_10", "nDCG": "ndcg", "MRR@10": "recip_rank", "MAP@20": "map_cut_20",
    "R@10": "recall_10", "R@100": "recall_100", "P@5": "P_5",
}  # fmt: skip


def judged() -> Any:
    """The pairs of the evaluator's tests, with relevance that trec_eval takes."""
    of = source()
    found = of.qrels
    of.qrels = Qrels(found.query, found.document, np.ceil(found.score / 30) - 1)
    return of


def trec(qrels: Any, run: Any) -> dict[str, dict[str, float]]:
    """trec_eval's values by our names, for all judged queries."""
    names = {"ndcg_cut.10", "ndcg", "recip_rank", "map_cut.20", "recall.10,100", "P.5"}
    whole = pytrec_eval.RelevanceEvaluator(qrels, names).evaluate(run)
    short = {q: dict(sorted(d.items(), key=lambda x: (x[1], x[0]))[-10:]) for q, d in run.items()}
    first = pytrec_eval.RelevanceEvaluator(qrels, names).evaluate(short)
    out = {}
    for query in qrels:
        found = {ours: whole.get(query, {}).get(name, 0.0) for ours, name in MEASURES.items()}
        out[query] = {**found, "MRR@10": first.get(query, {}).get("recip_rank", 0.0)}
    return out


def qrels_of(of: Any) -> dict[str, dict[str, int]]:
    out: dict[str, dict[str, int]] = {}
    j = of.qrels
    for q, d, s in zip(j.query.tolist(), j.document.tolist(), j.score.tolist(), strict=True):
        out.setdefault(str(q), {})[str(d)] = int(s)
    return out


def test_the_evaluator_agrees_with_trec_eval_on_its_own_run(tmp_path: Path) -> None:
    of = judged()
    task = Ranking(metrics=METRICS, depth=25, chunk=4, rankings=True, documents=("title",))
    each = bound(task, of, SPECS, TOPOLOGIES["sphere"], Preset())
    found = evals.run({"ranking/a b": each}, {"ranking/a b"}, {}, None, tmp_path)
    folder = tmp_path / "ranking-a-b"
    assert {path.name for path in folder.iterdir()} == {"run.trec", "queries.csv"}
    run = {query: dict(documents) for query, documents in read_run(folder / "run.trec").items()}
    expected = trec(qrels_of(of), run)
    queries, values = read_values(folder / "queries.csv")
    assert set(queries) == set(expected)
    assert set(values) == {*METRICS, *(f"title/{metric}" for metric in METRICS)}
    for metric in METRICS:
        wanted = [expected[query][metric] for query in queries]
        np.testing.assert_allclose(values[metric], wanted, atol=1e-9, err_msg=metric)
    for metric, each in values.items():  # those of the other weighting, too
        assert found[f"ranking/a b/{metric}"] == pytest.approx(np.mean(each))


@pytest.mark.parametrize("when", ["at once", "midway", "at the end"])
def test_a_run_does_without_rankings_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, said: list[str]
) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    task = Ranking(metrics=METRICS, depth=25, chunk=4, rankings=True)
    each = bound(task, judged(), SPECS, TOPOLOGIES["sphere"], Preset())
    whole = evals.run({"ranking/x": each}, {"ranking/x"}, {}, None, tmp_path / "whole")
    method = {"at once": "__enter__", "midway": "add", "at the end": "__exit__"}[when]
    monkeypatch.setattr(RunWriter, method, full)
    arguments: Any = ({"ranking/x": each}, {"ranking/x"}, {}, None, tmp_path)
    assert evals.run(*arguments, Extras()) == whole
    assert [line for line in said if "warning" in line] == [
        f"warning: ranking/x: {tmp_path.name}/ranking-x is not written (No space left on device); "
        "the run continues"
    ]
    with pytest.raises(OSError, match="No space left"):
        evals.run(*arguments)


def test_nothing_is_written_where_nobody_asks(tmp_path: Path) -> None:
    task = Ranking(metrics=("nDCG@10",), depth=5)
    each = bound(task, judged(), SPECS, TOPOLOGIES["sphere"], Preset())
    evals.run({"ranking/x": each}, {"ranking/x"}, {}, None, tmp_path)
    assert not list(tmp_path.iterdir())
    other = bound(Geometry(), None, {}, None, None)
    asked = evals.with_rankings({"ranking/x": each, "other": other})
    assert asked["ranking/x"].part.rankings
    with pytest.raises(UserError, match=r"none of the evaluators \(other\) has values by query"):
        evals.with_rankings({"other": other})


def test_bm25_writes_the_same_files_and_ids_keep_their_blanks(tmp_path: Path) -> None:
    class Named(Records):
        def id(self, index: int) -> str:
            return f"number {index}"

    documents = [{"text": f"word{i} common"} for i in range(4)]
    of: Any = SimpleNamespace(
        queries=Named(Rows([{"query": "word2 common"}], "q"), image=(), text=""),
        documents=Named(Rows(documents, "d"), image=(), text=""),
        qrels=Qrels(np.array([0]), np.array([2]), np.array([1.0])),
    )
    task = Ranking(metrics=("MRR",), rankings=True)
    columns = {"query": ("query",), "document": ("text",)}
    part = Bm25Ranking(**vars(task), columns=columns)
    bound(part, of, {}, None, None).run({}, rankings=tmp_path)
    run = read_run(tmp_path / "run.trec")
    assert run["number 0"][0][0] == "number 2"
    assert read_values(tmp_path / "queries.csv")[0] == ["number 0"]


def test_run_files_against_trec_eval_with_ties_and_missing_queries(tmp_path: Path) -> None:
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
    whole = {query: list(found.items()) for query, found in run.items()}
    queries, values = values_of_run(whole, read_qrels(tmp_path / "test.qrels"), METRICS)
    expected = trec(qrels, run)
    for metric in METRICS:
        wanted = [expected[query][metric] for query in queries]
        np.testing.assert_allclose(values[metric], wanted, atol=1e-9, err_msg=metric)
    with pytest.raises(UserError, match="no query of the run is judged"):
        values_of_run({"other": [("d1", 1.0)]}, qrels, METRICS)


def test_scores_that_differ_by_less_than_a_float32_tie_as_in_trec_eval(tmp_path: Path) -> None:
    text = "q Q0 a 1 1.00000002 x\nq Q0 b 2 1.00000001 x\nr Q0 a 1 2e300 x\nr Q0 b 2 1e300 x\n"
    (tmp_path / "run.trec").write_text(text)
    run, qrels = read_run(tmp_path / "run.trec"), {"q": {"a": 1}, "r": {"a": 1}}
    _, values = values_of_run(run, qrels, METRICS)  # type: ignore
    expected = trec(qrels, {query: dict(found) for query, found in run.items()})
    for metric in set(METRICS) - {"MRR@10"}:  # `trec` cuts before trec_eval sees the scores
        wanted = [expected[query][metric] for query in qrels]
        np.testing.assert_allclose(values[metric], wanted, atol=1e-9, err_msg=metric)
    assert values["nDCG@10"].tolist() == pytest.approx([1 / np.log2(3)] * 2)
    assert values["MRR@10"].tolist() == [0.5, 0.5]


def test_the_evaluators_scores_are_float32_so_that_its_run_has_its_order() -> None:
    part, context = bound(Ranking(depth=5), judged(), SPECS, TOPOLOGIES["sphere"], Preset())
    queries, documents = (encode_side(context, {}, side) for side in SIDES)
    embeddings = queries.embeddings["query"]
    (ranked,) = part.rank(context, embeddings, queries, documents, {"image": 1.0})
    assert ranked.scores.dtype == np.float32


def test_ids_of_the_run_or_the_qrels_alone_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    qrels = {"q1": {"d1": 1.0}, "q2": {"d2": 1.0}}
    values_of_run({"q1": [("d2", 1.0)]}, qrels, ["MRR"])  # it finds nothing right, but knows ids
    assert capsys.readouterr().err == ""
    assert values_of_run({"q1": [("corpus-1", 1.0)]}, qrels, ["MRR"])[1]["MRR"].tolist() == [0, 0]
    assert "is 'corpus-1' named as the qrels name theirs" in capsys.readouterr().err
    values_of_run({"q3": [("d1", 1.0)], "q2": [("d2", 1.0)]}, qrels, ["MRR"])
    captured = capsys.readouterr()
    said = captured.err + captured.out
    assert "1 of 2 judged queries have no results and count 0" in said
    assert "1 of 2 queries of the run are not judged and not counted" in said


def test_paired_tests() -> None:
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
    with pytest.raises(UserError, match="at least 2; there are 1 and 1"):
        comparison.compare(a[:1], b[:1])


@pytest.fixture
def command() -> Any:
    """Runs `big-retrieval compare` in this process: (words, flags)."""

    def run(*words: Any, **flags: Any) -> None:
        flags = {"metrics": ("MRR",), **{name.lower(): value for name, value in flags.items()}}
        compare.main(compare.CompareOptions(systems=tuple(map(str, words)), **flags))

    return run


def written(folder: Path, **values: float) -> Path:
    path = folder / "rankings" / "ranking-test" / "queries.csv"
    path.parent.mkdir(parents=True)
    path.write_text("query,MRR\n" + "".join(f"{q},{v}\n" for q, v in values.items()))
    return folder


def test_folders_are_compared_by_query(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = written(tmp_path / "a", x=0.5, y=0.25, z=1.0)
    b = written(tmp_path / "b", z=1.0, y=0.5, x=1.0)
    command(a, b, OUT=tmp_path / "table.csv")
    said = capsys.readouterr().out
    assert "ranking-test, 3 queries" in said
    p = stats.ttest_rel([1.0, 0.5, 1.0], [0.5, 0.25, 1.0]).pvalue
    line = next(line for line in said.splitlines() if line.startswith("  MRR"))
    assert line.split()[1:] == ["0.5833", "0.8333", "+0.2500", f"{p:.2g}", "2", "1", "0"]
    row = (tmp_path / "table.csv").read_text().splitlines()[1].split(",")
    assert row[:3] + row[-3:] == ["ranking-test", "MRR", "3", "2", "1", "0"]


def test_queries_with_the_largest_gains(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = written(tmp_path / "a", x=0.5, y=0.25, z=1.0, w=0.0)
    b = written(tmp_path / "b", z=1.0, y=0.5, w=0.5, x=1.0)
    command(a, b, LARGEST="MRR:2")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "ranking-test, largest gains in MRR: --show=x,w (+0.5, +0.5)"
    with pytest.raises(UserError, match="No evaluator of both has the metric 'R@1'"):
        command(a, b, LARGEST="R@1:2")
    with pytest.raises(UserError, match="--largest is METRIC:COUNT"):
        command(a, b, LARGEST="MRR")


def test_a_mode_of_one_against_the_plain_metrics_of_the_other(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
        ("query,MRR\nx,1\ny,0\nz,nan\n", "row 3: a value of query 'z' is not finite"),
        ("query,MRR\nx,1\ny,0\nx,1\n", "has query 'x' twice"),
        ("query,R@10,nDCG@5\nx,1,1\ny,0,0\n", "no metric in common: .*a has MRR; .*b has R@10"),
    ],
)
def test_tables_that_do_not_fit(command: Any, tmp_path: Path, table: str, message: str) -> None:
    a, b = written(tmp_path / "a", x=0.5, y=0.25), written(tmp_path / "b")
    (b / "rankings" / "ranking-test" / "queries.csv").write_text(table)
    with pytest.raises(UserError, match=message):
        command(a, b)


def test_run_files_are_compared_by_their_qrels(
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
        (["a", "nothing"], {}, "nothing has no rankings/<evaluator>/queries.csv, as there is no"),
        (["a", "run"], {}, "run --rankings."),
        (["a", "empty"], {}, "--rankings --out=FOLDER, and compare that folder"),
        (["a", "image_text"], {}, "they have ranking-test and retrieval-test-text_to_image"),
        (["a", "file"], {"QRELS": Path("file")}, "a is a folder. Compare two run files"),
        (["a", "other"], {"QRELS": Path("file")}, "leave out --qrels"),
        (["a", "other"], {}, "2 queries are in one of the two alone, such as 'w' in"),
        (["file", "a"], {}, "give --qrels=FILE"),
        (["file", "file"], {}, "file is a file. Compare two folders"),
        (["file", "file"], {"QRELS": Path("file"), "MODE_A": "bag"}, "are for folders"),
        (["file", "file"], {"QRELS": Path("missing")}, "missing cannot be read"),
        (
            ["file", "file"],
            {"METRICS": ["ndcg@10"], "QRELS": Path("file")},
            "did you mean 'nDCG@10'",
        ),
    ],
)
def test_mistakes(
    command: Any, tmp_path: Path, words: list[str], flags: dict[str, Any], message: str
) -> None:
    written(tmp_path / "a", x=0.5, y=0.25)
    written(tmp_path / "other", y=0.5, w=1.0)
    (tmp_path / "file").write_text("x\n")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    written(tmp_path / "image_text", y=0.5).joinpath("rankings", "ranking-test").rename(
        tmp_path / "image_text" / "rankings" / "retrieval-test-text_to_image"
    )
    with pytest.raises(UserError) as problem:
        command(*(tmp_path / word for word in words), **flags)
    assert message in str(problem.value)


@pytest.mark.slow
def test_a_run_writes_them_at_its_end_alone(tmp_path: Path) -> None:
    from big_retrieval.train.loop import train
    from tests.test_evaluate import graded

    config = graded(total_steps=2, eval_every=1, report=False)
    asked = Ranking(**{**config.evals["in_domain"].__dict__, "rankings": True})
    object.__setattr__(config, "evals", {"in_domain": asked})
    train(config, tmp_path)
    (path,) = (tmp_path / "rankings").glob("*/queries.csv")
    _, values = read_values(path)
    results = json.loads((tmp_path / "results.json").read_text())
    for name, each in values.items():
        assert results[f"ranking/in_domain/{name}"] == pytest.approx(each.mean())
