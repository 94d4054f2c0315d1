"""Documents in the formats of other tools, read by these tools if they are installed."""

import itertools
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
from big_retrieval.retrieval import exports
from big_retrieval.retrieval.exports import Batch, ExportedDocuments
from tests.helpers import user_error
from tests.retrieval.index_cases import best_by_product, cut, random_rows

WORDS = ["x", "##y", "漢"]


def batches(rows: Any, size: int = 7) -> Iterator[Batch]:
    """Documents with the ids d0, d1, ... and the texts t0, t1, ..."""
    for start, part in zip(itertools.count(0, size), cut(rows, size), strict=False):
        indices = range(start, start + part.shape[0])
        yield [f"d{i}" for i in indices], [f"t{i}" for i in indices], part


def test_lucene_lines(tmp_path: Path) -> None:
    rows = sparse.csr_array(np.float32([[0, 1.5, 0.004], [0, 0, 0], [2, 0, 0.126]]))
    parts = [(["a", "b"], ["", ""], rows[:2]), (['c"'], [""], rows[2:])]

    def lines(quantise: float | None) -> list[dict[str, Any]]:
        export = ExportedDocuments(parts, WORDS, quantise=quantise)
        assert exports.write_export("lucene", tmp_path, export) == 3
        return [json.loads(x) for x in (tmp_path / "documents.jsonl").read_text().splitlines()]

    assert lines(100.0) == [
        {"id": "a", "contents": "", "vector": {"##y": 150}},
        {"id": "b", "contents": "", "vector": {}},
        {"id": 'c"', "contents": "", "vector": {"x": 200, "漢": 13}},
    ]
    weights = list(lines(None)[0]["vector"].values())
    np.testing.assert_array_equal(np.float32(weights), rows.data[:2])


def test_csr_files(tmp_path: Path) -> None:
    rows, words = random_rows(50, 12, 0.3, 0), [f"w{i}" for i in range(12)]
    assert exports.write_export("csr", tmp_path, ExportedDocuments(batches(rows), words)) == 50
    loaded = sparse.load_npz(tmp_path / "documents.npz")
    assert (loaded.shape, loaded.dtype) == (rows.shape, np.float32)
    assert (loaded != rows).nnz == 0
    assert (tmp_path / "ids.txt").read_text().split() == [f"d{i}" for i in range(50)]
    assert (tmp_path / "words.txt").read_text().split() == words
    assert len(list(tmp_path.iterdir())) == 3
    with user_error("line break"):
        exports.write_export(
            "csr", tmp_path, ExportedDocuments([(["a\nb"], [""], rows[:1])], words)
        )


def test_npz_files(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(20, 2, 3)).astype(np.float32)
    export = ExportedDocuments(batches(rows), topology="geodesic")
    assert exports.write_export("npz", tmp_path, export) == 20
    with np.load(tmp_path / "documents.npz") as arrays:
        np.testing.assert_array_equal(arrays["embeddings"], rows)
    assert (tmp_path / "ids.txt").read_text().split() == [f"d{i}" for i in range(20)]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("name", "lexical", "other"), [("lucene", False, "npz"), ("npz", True, "csr")]
)
def test_check_rejects_other_embeddings(name: str, lexical: bool, other: str) -> None:
    with user_error(f"--format={name}", f"--format={other}"):
        exports.check(name, "a", lexical=lexical)


def test_qdrant_rejects_geodesic_before_encoding(tmp_path: Path) -> None:
    def encoded() -> Iterator[Batch]:
        raise AssertionError
        yield

    with user_error("topology 'geodesic'", "--format=npz"):
        exports.write_export("qdrant", tmp_path, ExportedDocuments(encoded(), topology="geodesic"))


def test_upload_program_needs_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exports.write_export(
        "qdrant", tmp_path, ExportedDocuments(batches(random_rows(5, 3, 1, 0)), WORDS)
    )
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    monkeypatch.setattr(sys, "argv", ["upload.py", "--path=x"])
    with pytest.raises(SystemExit, match=r"^upload.py needs .*: pip install qdrant-client$"):
        runpy.run_path(str(tmp_path / "upload.py"), run_name="__main__")


def test_qdrant_searches_lexical_documents(tmp_path: Path) -> None:
    qdrant = pytest.importorskip("qdrant_client")
    from big_retrieval.retrieval.exports import qdrant_upload

    rows, queries = random_rows(300, 60, 0.2, 0), random_rows(20, 60, 0.3, 1)
    rows = sparse.vstack([rows, sparse.csr_array((1, 60), dtype=np.float32)], format="csr")
    exports.write_export(
        "qdrant", tmp_path, ExportedDocuments(batches(rows), [f"w{i}" for i in range(60)])
    )
    args = ["--folder", str(tmp_path), "--path", str(tmp_path / "local"), "--collection=c"]
    qdrant_upload.main(args)
    with pytest.raises(SystemExit, match="Collection c exists"):
        qdrant_upload.main(args)
    client = qdrant.QdrantClient(path=str(tmp_path / "local"))
    assert client.count("c").count == 301
    numbers, scores = best_by_product(queries, rows, 10)
    for query in range(20):
        one = queries[[query]]
        vector = qdrant.models.SparseVector(indices=one.indices.tolist(), values=one.data.tolist())
        points = client.query_points("c", query=vector, using="lexical", limit=10).points
        np.testing.assert_allclose([point.score for point in points], scores[query], rtol=1e-6)
        # Engines may choose among equal scores at the last rank.
        sure = {f"d{number}" for number in numbers[query][scores[query] > scores[query][-1]]}
        assert sure <= {point.payload["id"] for point in points}
    assert points[0].payload["text"] == f"t{points[0].id}"


@pytest.mark.parametrize("name", ["oblique", "euclidean"])
def test_qdrant_searches_dense_documents(tmp_path: Path, name: str) -> None:
    qdrant = pytest.importorskip("qdrant_client")
    from big_retrieval.retrieval.exports import qdrant_upload

    topology, rng = topology_part(name), np.random.default_rng(0)
    rows, queries = (np.float32(topology.project(rng.normal(size=(n, 2, 8)))) for n in (300, 20))
    exports.write_export("qdrant", tmp_path, ExportedDocuments(batches(rows), topology=name))
    client = qdrant.QdrantClient(":memory:")
    assert qdrant_upload.upload(client, "c", tmp_path) == 300
    table = np.asarray(topology.score(queries, rows))
    best = np.argsort(-table, axis=1)[:, :10]
    sign = -1 if name == "euclidean" else 1  # Qdrant's score is the distance itself
    for query in range(20):
        vector = queries[query].ravel().tolist()
        points = client.query_points("c", query=vector, using="dense", limit=10).points
        assert [point.id for point in points] == best[query].tolist()
        scores = [sign * point.score for point in points]
        np.testing.assert_allclose(scores, table[query, best[query]], rtol=1e-4)
