"""The dense index finds what every topology's whole table of scores has."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval import similarity
from big_retrieval.config import schema
from big_retrieval.config.topologies import topology_part
from big_retrieval.errors import UserError
from big_retrieval.retrieval import dense, open_index
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.dense import DenseIndex, build
from big_retrieval.retrieval.folder import About
from tests.helpers import raw_config
from tests.retrieval.index_cases import write_ids


def embeddings(rows: int, topology: str, seed: int) -> np.ndarray:
    raw = np.random.default_rng(seed).standard_normal((rows, 3, 4)).astype(np.float32)
    return np.array(topology_part(topology).project(raw))


def make_dense(out: Path, found: np.ndarray, topology: str) -> DenseIndex:
    partial = folders.begin(out)
    batches = (found[start : start + 300] for start in range(0, len(found), 300))
    about = build(partial, batches, About(kind="dense", topology=topology))
    write_ids(partial, len(found))
    folders.finish(partial, out, about)
    index = open_index(out, verify=True)
    assert isinstance(index, DenseIndex)
    return index


@pytest.mark.parametrize("resident", [0, 2**30])
@pytest.mark.parametrize("topology", sorted(similarity.TOPOLOGIES))
def test_it_finds_what_the_table_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topology: str, resident: int
) -> None:
    monkeypatch.setattr(dense, "SCORES", 1)  # blocks of 1024
    monkeypatch.setattr(dense, "CHUNK", 3)
    monkeypatch.setattr(dense, "RESIDENT", resident)
    documents, queries = embeddings(2500, topology, 0), embeddings(7, topology, 1)
    documents[2000] = documents[10]  # a tie across blocks
    queries[3] = documents[10]
    index = make_dense(tmp_path / "index", documents, topology)
    table = np.asarray(topology_part(topology).score(queries, documents))
    order = np.lexsort((np.broadcast_to(np.arange(2500), table.shape), -table), axis=1)[:, :40]
    numbers, scores = index.search(queries, 40)
    np.testing.assert_allclose(scores, np.take_along_axis(table, order, 1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(table, numbers, 1), scores, rtol=1e-5, atol=1e-6)
    assert all(len(set(row)) == 40 for row in numbers.tolist())
    if topology != "euclidean":  # whose distance to an equal embedding is all rounding
        places = [numbers[3].tolist().index(number) for number in (10, 2000)]
        assert places[1] == places[0] + 1
    assert len(index._blocks) == (3 if resident else 0)


def test_more_asked_for_than_there_is(tmp_path: Path) -> None:
    index = make_dense(tmp_path / "index", embeddings(5, "oblique", 0), "oblique")
    numbers, scores = index.search(embeddings(2, "oblique", 1), 8)
    assert sorted(numbers[0, :5].tolist()) == [0, 1, 2, 3, 4]
    assert (numbers[:, 5:] == -1).all()
    assert (scores[:, 5:] == -np.inf).all()
    assert index.search(np.zeros((0, 3, 4)), 8)[0].shape == (0, 8)
    assert index.ids.many(numbers[0])[0] == f"d{numbers[0, 0]}"


def test_what_a_dense_index_refuses(tmp_path: Path) -> None:
    found = embeddings(400, "sphere", 0)
    found[350, 1, 1] = np.nan
    with pytest.raises(UserError, match="embedding of document 350 is not finite"):
        make_dense(tmp_path / "nan", found, "sphere")
    with pytest.raises(UserError, match="topology 'plane' is unknown"):
        make_dense(tmp_path / "plane", found, "plane")
    partial = folders.begin(tmp_path / "two")
    batches = [found[:2], found[:2, :2]]
    with pytest.raises(UserError, match=r"shape \(2, 4\) after \(3, 4\)"):
        build(partial, batches, About(kind="dense", topology="sphere"))
    with pytest.raises(UserError, match="No documents"):
        build(partial, [], About(kind="dense", topology="sphere"))
    index = make_dense(tmp_path / "index", found[:300], "sphere")
    with pytest.raises(UserError, match=r"embeddings of shape \(2, 4\)"):
        index.search(found[:1, :2], 3)
    with pytest.raises(UserError, match="embedding of a query is not finite"):
        index.search(found[350:351], 3)
    with pytest.raises(UserError, match="depth of a search is 0"):
        index.search(found[:1], 0)


def test_an_unknown_topology_asks_for_its_file_which_the_run_names(tmp_path: Path) -> None:
    index = make_dense(tmp_path / "index", embeddings(3, "sphere", 0), "sphere")
    about = replace(index.about, topology="gone", checkpoint=str(tmp_path))
    run = schema.to_plain(configs.load(raw_config()))
    plugin = {"module": "m", "file": "gone.py", "sha256": ""}
    run |= {"topology": "gone", "plugins": {"topology/gone": plugin}}
    with pytest.raises(UserError, match=r"'gone' is unknown.*--plugins=FILE"):
        DenseIndex(index.folder, about)
    (tmp_path / "config.json").write_text(json.dumps(run))
    with pytest.raises(UserError, match=r"'gone', which gone\.py defines: give this file as --pl"):
        DenseIndex(index.folder, about)
