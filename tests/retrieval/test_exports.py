"""Documents in the formats of other tools, read by these tools where they are installed."""

import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from big_retrieval.config.topologies import topology_part
from big_retrieval.errors import UserError
from big_retrieval.retrieval import exports
from big_retrieval.retrieval.exports import Batch, ExportedDocuments
from tests.retrieval.index_cases import cut, expected, random_rows

WORDS = ["x", "##y", "漢"]


def batches(rows: Any, size: int = 7) -> Iterator[Batch]:
    """Documents with the ids d0, d1, ... and the texts t0, t1, ..."""
    start = 0
    for part in cut(rows, size):
        numbers = range(start, start := start + part.shape[0])
        yield [f"d{i}" for i in numbers], [f"t{i}" for i in numbers], part


def sure(numbers: np.ndarray, scores: np.ndarray) -> set[str]:
    """The documents above the last rank, where an engine may choose among equal scores."""
    return {f"d{number}" for number in numbers[scores > scores[-1]]}


def test_lucene(tmp_path: Path) -> None:
    rows = sparse.csr_array(np.float32([[0, 1.5, 0.004], [0, 0, 0], [2, 0, 0.126]]))
    names = ["a", "b", 'c"']
    parts = [(names[:2], ["", ""], rows[:2]), (names[2:], [""], rows[2:])]
    assert exports.write("lucene", tmp_path, ExportedDocuments(parts, WORDS, quantise=100)) == 3
    lines = (tmp_path / "documents.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"id": "a", "contents": "", "vector": {"##y": 150}}
    assert [json.loads(line)["vector"] for line in lines[1:]] == [{}, {"x": 200, "漢": 13}]
    assert json.loads(lines[2])["id"] == 'c"'
    exports.write("lucene", tmp_path, ExportedDocuments(parts, WORDS))
    first = json.loads((tmp_path / "documents.jsonl").read_text().splitlines()[0])
    np.testing.assert_array_equal(np.float32(list(first["vector"].values())), rows.data[:2])


def test_csr(tmp_path: Path) -> None:
    rows, words = random_rows(50, 12, 0.3, 0), [f"w{i}" for i in range(12)]
    assert exports.write("csr", tmp_path, ExportedDocuments(batches(rows), words)) == 50
    found = sparse.load_npz(tmp_path / "documents.npz")
    assert found.shape == rows.shape
    assert (found != rows).nnz == 0
    assert found.dtype == np.float32
    assert (tmp_path / "ids.txt").read_text().split() == [f"d{i}" for i in range(50)]
    assert (tmp_path / "words.txt").read_text().split() == words
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(UserError, match="line break"):
        exports.write("csr", tmp_path, ExportedDocuments([(["a\nb"], [""], rows[:1])], words))


def test_npz(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(20, 2, 3)).astype(np.float32)
    assert (
        exports.write("npz", tmp_path, ExportedDocuments(batches(rows), topology="geodesic")) == 20
    )
    with np.load(tmp_path / "documents.npz") as found:
        np.testing.assert_array_equal(found["embeddings"], rows)
    assert (tmp_path / "ids.txt").read_text().split() == [f"d{i}" for i in range(20)]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("name", "lexical", "message"),
    [
        (
            "lucene",
            False,
            "--format=lucene needs lexical fields, but a is dense. Use --format=npz",
        ),
        ("npz", True, "--format=npz needs dense fields, but a is lexical. Use --format=csr"),
    ],
)
def test_a_format_for_other_embeddings(name: str, lexical: bool, message: str) -> None:
    with pytest.raises(UserError, match=message):
        exports.check(name, "a", lexical=lexical)


def test_qdrant_has_no_geodesic_distance(tmp_path: Path) -> None:
    """Which is said before the first document is encoded."""

    def encoded() -> Iterator[Batch]:
        raise AssertionError
        yield

    with pytest.raises(UserError, match=r"topology 'geodesic'\. Use --format=npz"):
        exports.write("qdrant", tmp_path, ExportedDocuments(encoded(), topology="geodesic"))


def test_the_program_for_qdrant_asks_for_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports.write("qdrant", tmp_path, ExportedDocuments(batches(random_rows(5, 3, 1, 0)), WORDS))
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    monkeypatch.setattr(sys, "argv", ["upload.py", "--path=x"])
    with pytest.raises(SystemExit, match=r"^upload.py needs .*: pip install qdrant-client$"):
        runpy.run_path(str(tmp_path / "upload.py"), run_name="__main__")


def test_qdrant_finds_lexical_documents_like_our_index(tmp_path: Path) -> None:
    qdrant = pytest.importorskip("qdrant_client")
    from big_retrieval.retrieval.exports import qdrant_upload

    rows, queries = random_rows(300, 60, 0.2, 0), random_rows(20, 60, 0.3, 1)
    rows = sparse.vstack([rows, sparse.csr_array((1, 60), dtype=np.float32)], format="csr")
    exports.write(
        "qdrant", tmp_path, ExportedDocuments(batches(rows), [f"w{i}" for i in range(60)])
    )
    args = ["--folder", str(tmp_path), "--path", str(tmp_path / "local"), "--collection=c"]
    qdrant_upload.main(args)
    with pytest.raises(SystemExit, match="Collection c exists"):
        qdrant_upload.main(args)
    client = qdrant.QdrantClient(path=str(tmp_path / "local"))
    assert client.count("c").count == 301
    numbers, scores = expected(queries, rows, 10)
    for query in range(20):
        one = queries[[query]]
        asked = qdrant.models.SparseVector(indices=one.indices.tolist(), values=one.data.tolist())
        found = client.query_points("c", query=asked, using="lexical", limit=10).points
        np.testing.assert_allclose([point.score for point in found], scores[query], rtol=1e-6)
        names = {point.payload["id"] for point in found}
        assert sure(numbers[query], scores[query]) <= names
    assert found[0].payload["text"] == f"t{found[0].id}"


@pytest.mark.parametrize("name", ["oblique", "euclidean"])
def test_qdrant_finds_dense_documents_like_our_index(tmp_path: Path, name: str) -> None:
    qdrant = pytest.importorskip("qdrant_client")
    from big_retrieval.retrieval.exports import qdrant_upload

    topology, rng = topology_part(name), np.random.default_rng(0)
    rows, queries = (np.float32(topology.project(rng.normal(size=(n, 2, 8)))) for n in (300, 20))
    exports.write("qdrant", tmp_path, ExportedDocuments(batches(rows), topology=name))
    client = qdrant.QdrantClient(":memory:")
    assert qdrant_upload.upload(client, "c", tmp_path) == 300
    table = np.asarray(topology.score(queries, rows))
    best = np.argsort(-table, axis=1)[:, :10]
    sign = -1 if name == "euclidean" else 1  # Qdrant's score is then the distance itself
    for query in range(20):
        asked = queries[query].ravel().tolist()
        found = client.query_points("c", query=asked, using="dense", limit=10).points
        assert [point.id for point in found] == best[query].tolist()
        scores = [sign * point.score for point in found]
        np.testing.assert_allclose(scores, table[query, best[query]], rtol=1e-4)
