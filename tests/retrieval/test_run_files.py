"""Run files and qrels of TREC, written and read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval.evals.trec import TAG, RunWriter, read_qrels, read_run
from tests.helpers import user_error

IDS = ["a b", "a%20b", "a+b", "a\u00a0b", "a\u3000b", "a\u2028b", '"a" b', '"a"', "50%", "a\vb"]


def write_run(
    path: Path, queries: Sequence[str], documents: Any, scores: Any, tag: str = TAG
) -> None:
    with RunWriter(path, tag) as writer:
        for query, ids, values in zip(queries, documents, scores, strict=True):
            writer.add(query, ids, values)


def test_run_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "run.trec"
    scores = [np.float32([0.1, 1 / 3]), [], [1e-7, -2.5]]
    write_run(path, ["q1", "q2", "ü"], [["a", "b"], [], ["c", "a"]], scores, "mine")
    assert path.read_text().splitlines()[0] == "q1 Q0 a 1 0.100000001 mine"
    run = read_run(path)
    assert list(run) == ["q1", "ü"]
    assert [name for name, _ in run["q1"]] == ["b", "a"]  # by score
    assert [np.float32(score) for _, score in run["q1"]] == [np.float32(1 / 3), np.float32(0.1)]
    assert run["ü"] == [("c", pytest.approx(1e-7)), ("a", -2.5)]
    assert [path.name for path in path.parent.iterdir()] == ["run.trec"]


def test_run_keeps_any_id(tmp_path: Path) -> None:
    write_run(tmp_path / "run", IDS, [IDS] * len(IDS), [range(len(IDS), 0, -1)] * len(IDS))
    run = read_run(tmp_path / "run")
    assert list(run) == IDS
    assert all([document for document, _ in ranking] == IDS for ranking in run.values())


def test_run_writer_makes_equal_scores_differ(tmp_path: Path) -> None:
    """Other readers would not keep the order of equal scores."""
    write_run(tmp_path / "run", ["q"], [["a", "c", "b", "d"]], [[1.0, 1.0, 1.0, 0.5]])
    scores = dict(read_run(tmp_path / "run")["q"])
    assert len(set(map(np.float32, scores.values()))) == 4
    assert list(scores) == ["a", "c", "b", "d"]
    assert list(scores.values()) == pytest.approx([1, 1, 1, 0.5], abs=1e-6)


def test_readers_split_at_ascii_white_space(tmp_path: Path) -> None:
    lines = "1\tQ0\td1\t1\t2.0\tt\r\n1 Q0  d2 2 1.0 t\n 2 Q0 d\u00a03 1 1.0 t\n"
    (tmp_path / "run").write_text(lines)
    run = read_run(tmp_path / "run")
    assert run == {"1": [("d1", 2.0), ("d2", 1.0)], "2": [("d\u00a03", 1.0)]}
    (tmp_path / "qrels").write_text("1\t0\td1\t1\n1 0 d2 1\n2  0   d\u00a03  1\n")
    assert read_qrels(tmp_path / "qrels") == {"1": {"d1": 1, "d2": 1}, "2": {"d\u00a03": 1}}


def test_qrels_of_beir_have_quotes(tmp_path: Path) -> None:
    lines = 'query-id\tcorpus-id\tscore\nq 1\t"""Weird""_Song"\t2\nq2\t"12""_Single"\t1\n'
    (tmp_path / "qrels.tsv").write_text(lines)
    expected = {"q 1": {'"Weird"_Song': 2.0}, "q2": {'12"_Single': 1.0}}
    assert read_qrels(tmp_path / "qrels.tsv") == expected
    (tmp_path / "bare.tsv").write_text('q 1\t"Weird"_Song\t2\nq2\t12"_Single\t1\n')
    assert read_qrels(tmp_path / "bare.tsv") == expected


def test_read_run_keeps_order_of_equal_scores(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("1 Q0 b 1 2.0 t\n\n1 Q0 a 2 2 t\n1 0 c 3 5e0 t\n")
    assert [name for name, _ in read_run(tmp_path / "run")["1"]] == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"q Q0 d 1 2.0", "line 2 has 5 columns instead of 6"),
        (b"q Q0 d 1 2.0 my run", "line 2 has 7 columns"),
        (b"q Q0 d one 2.0 t", "line 2: the rank is 'one'"),
        (b"q Q0 d 1 high t", "the score 'high'"),
        (b"q Q0 d 1 nan t", "the score 'nan'"),
        (b"q Q0 first 9 0.5 t", "line 2: duplicate document 'first' for query 'q'"),
        (b"\xff\xfe", "utf-8"),
        (None, "No such file"),
    ],
)
def test_read_run_rejects_wrong_file(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "run").write_bytes(b"q Q0 first 1 3.0 t\n" + content)
    with user_error(words):
        read_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("queries", "documents", "tag", "words"),
    [
        ([" a"], [["d"]], "t", "a query's id is ' a'"),
        (["q"], [["d\te"]], "t", "a document id of query 'q' is"),
        (["q"], [["d\n"]], "t", "a document id of query 'q' is"),
        (["q"], [[""]], "t", "a document id of query 'q' is ''"),
        (["q", "q"], [["d"], ["d"]], "t", "Duplicate query 'q'"),
        (["q"], [["d"]], "my run", "the tag of a run is 'my run'"),
    ],
)
def test_run_writer_rejects_unreadable_run(
    tmp_path: Path, queries: list[str], documents: list[list[str]], tag: str, words: str
) -> None:
    with user_error(words):
        write_run(tmp_path / "run", queries, documents, [[1.0]] * len(queries), tag)
    assert not list(tmp_path.iterdir())


def test_interrupted_run_writer_leaves_no_file(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    run.add("q", ["d"], [1.0])
    run.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert not list(tmp_path.iterdir())
