"""Dense indexes return the best documents of every topology's full table of scores."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval import similarity
from big_retrieval.config import schema
from big_retrieval.config.topologies import topology_part
from big_retrieval.retrieval import dense
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.dense import DenseIndex, build
from big_retrieval.retrieval.folder import About
from tests.helpers import raw_config, user_error
from tests.retrieval.index_cases import embeddings, make_dense


@pytest.mark.parametrize("resident", [0, 2**30])
@pytest.mark.parametrize("topology", sorted(similarity.TOPOLOGIES))
def test_search_equals_full_table(
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
    if topology != "euclidean":  # its distance of equal embeddings is rounding error
        ranks = [numbers[3].tolist().index(number) for number in (10, 2000)]
        assert ranks[1] == ranks[0] + 1
    assert len(index._blocks) == (3 if resident else 0)


def test_search_deeper_than_index(tmp_path: Path) -> None:
    index = make_dense(tmp_path / "index", embeddings(5, "oblique", 0), "oblique")
    numbers, scores = index.search(embeddings(2, "oblique", 1), 8)
    assert sorted(numbers[0, :5].tolist()) == [0, 1, 2, 3, 4]
    assert (numbers[:, 5:] == -1).all()
    assert (scores[:, 5:] == -np.inf).all()
    assert index.search(np.zeros((0, 3, 4)), 8)[0].shape == (0, 8)
    assert index.ids.many(numbers[0])[0] == f"d{numbers[0, 0]}"


def test_dense_index_rejects_wrong_values(tmp_path: Path) -> None:
    rows = embeddings(400, "sphere", 0)
    rows[350, 1, 1] = np.nan
    with user_error("document 350", "not finite"):
        make_dense(tmp_path / "nan", rows, "sphere")
    with user_error("topology 'plane' is unknown"):
        make_dense(tmp_path / "plane", rows, "plane")
    partial = folders.begin(tmp_path / "two")
    for batches, words in (([rows[:2], rows[:2, :2]], "(2, 4) after (3, 4)"), ([], "No documents")):
        with user_error(words):
            build(partial, batches, About(kind="dense", topology="sphere"))
    index = make_dense(tmp_path / "index", rows[:300], "sphere")
    for queries, depth, words in (
        (rows[:1, :2], 3, "shape (2, 4)"),
        (rows[350:351], 3, "not finite"),
        (rows[:1], 0, "depth of a search is 0"),
    ):
        with user_error(words):
            index.search(queries, depth)


def test_unknown_topology_names_plugin_of_run(tmp_path: Path) -> None:
    index = make_dense(tmp_path / "index", embeddings(3, "sphere", 0), "sphere")
    about = replace(index.about, topology="gone", checkpoint=str(tmp_path))
    run = schema.to_plain(configs.load(raw_config()))
    plugin = {"module": "m", "file": "gone.py", "sha256": ""}
    run |= {"topology": "gone", "plugins": {"topology/gone": plugin}}
    with user_error("'gone' is unknown", "--plugins=FILE"):
        DenseIndex(index.folder, about)
    (tmp_path / "config.json").write_text(json.dumps(run))
    with user_error("'gone'", "gone.py", "--pl"):
        DenseIndex(index.folder, about)
