"""Run files of TREC, written and read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval.errors import UserError
from big_retrieval.evals.trec import TAG, RunWriter, read_qrels, read_run


def write_run(
    path: Path, queries: Sequence[str], documents: Any, scores: Any, tag: str = TAG
) -> None:
    with RunWriter(path, tag) as writer:
        for query, ids, values in zip(queries, documents, scores, strict=True):
            writer.add(query, ids, values)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "run.trec"
    scores = [np.float32([0.1, 1 / 3]), [], [1e-7, -2.5]]
    write_run(path, ["q1", "q2", "ü"], [["a", "b"], [], ["c", "a"]], scores, "mine")
    assert path.read_text().splitlines()[0] == "q1 Q0 a 1 0.100000001 mine"
    found = read_run(path)
    assert list(found) == ["q1", "ü"]
    assert [name for name, _ in found["q1"]] == ["b", "a"]  # by score
    assert [np.float32(score) for _, score in found["q1"]] == [np.float32(1 / 3), np.float32(0.1)]
    assert found["ü"] == [("c", pytest.approx(1e-7)), ("a", -2.5)]
    assert [each.name for each in path.parent.iterdir()] == ["run.trec"]


IDS = ["a b", "a%20b", "a+b", "a\u00a0b", "a\u3000b", "a\u2028b", '"a" b', '"a"', "50%", "a\vb"]


def test_any_id_is_written_and_read_as_itself(tmp_path: Path) -> None:
    write_run(tmp_path / "run", IDS, [IDS] * len(IDS), [range(len(IDS), 0, -1)] * len(IDS))
    found = read_run(tmp_path / "run")
    assert list(found) == IDS
    assert all([document for document, _ in ranking] == IDS for ranking in found.values())


def test_equal_scores_are_written_so_that_any_reader_keeps_the_order(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ["q"], [["a", "c", "b", "d"]], [[1.0, 1.0, 1.0, 0.5]])
    scores = dict(read_run(tmp_path / "run")["q"])
    assert len(set(map(np.float32, scores.values()))) == 4
    assert list(scores) == ["a", "c", "b", "d"]
    assert list(scores.values()) == pytest.approx([1, 1, 1, 0.5], abs=1e-6)


def test_any_white_space_of_ascii_separates(tmp_path: Path) -> None:
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


def test_equal_scores_keep_their_order(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("1 Q0 b 1 2.0 t\n\n1 Q0 a 2 2 t\n1 0 c 3 5e0 t\n")
    assert [name for name, _ in read_run(tmp_path / "run")["1"]] == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("q Q0 d 1 2.0", "line 2 has 5 columns instead of 6"),
        ("q Q0 d 1 2.0 my run", "line 2 has 7 columns"),
        ("q Q0 d one 2.0 t", "line 2: the rank is 'one'"),
        ("q Q0 d 1 high t", "line 2: .* the score 'high'"),
        ("q Q0 d 1 nan t", "line 2: .* the score 'nan'"),
        ("q Q0 first 9 0.5 t", "line 2: duplicate document 'first' for query 'q'"),
    ],
)
def test_lines_that_are_wrong(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "run").write_text(f"q Q0 first 1 3.0 t\n{line}\n")
    with pytest.raises(UserError, match=words):
        read_run(tmp_path / "run")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_run(tmp_path / "nothing")
    (tmp_path / "run").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"Cannot read the run file .*run: .*utf-8"):
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
def test_what_cannot_be_written(
    tmp_path: Path, queries: list[str], documents: list[list[str]], tag: str, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        write_run(tmp_path / "run", queries, documents, [[1.0]] * len(queries), tag)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    run.add("q", ["d"], [1.0])
    run.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert not list(tmp_path.iterdir())
