"""Explanations by search mode: their products add up to the score of the search."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from big_retrieval import explain
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.explain import listings
from big_retrieval.explain.words import bags_of
from big_retrieval.inference import load
from big_retrieval.inference.load import TrainedModel
from big_retrieval.retrieval.build_index import IndexOptions, make
from big_retrieval.retrieval.index_search import SearchResult, open_searcher
from big_retrieval.train.checkpoint import write_model
from tests.explain.conftest import lexical_config
from tests.helpers import user_error

ASK = "a big red circle left of a small blue star"
DOCUMENTS = 6


@pytest.fixture
def saved(model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model as a checkpoint, opened without compiling it again."""
    write_model(model, tmp_path / "model")
    monkeypatch.setattr(load, "load", lambda path, **options: model)
    return tmp_path / "model"


def test_products_add_up_to_score_of_images(
    model: TrainedModel, scenes: SceneRecords, saved: Path, tmp_path: Path
) -> None:
    pictures = [scenes[i]["image"] for i in range(DOCUMENTS)]
    np.savez(tmp_path / "pictures.npz", image=pictures, id=list("012345"))
    index = make(IndexOptions(saved, str(tmp_path / "pictures.npz"), tmp_path / "index"))
    for mode in ("parametric", "bag"):
        results = open_searcher(index, mode=mode).show(ASK, DOCUMENTS)
        assert len(results) == DOCUMENTS
        for result in results:
            shared = explain.shared(model, ASK, pictures[int(result.id)], mode=mode)
            assert_same_score(shared, result)


def test_products_add_up_to_score_of_bags(
    model: TrainedModel, scenes: SceneRecords, saved: Path, tmp_path: Path
) -> None:
    texts = [scenes[i]["captions"][0] for i in range(DOCUMENTS)]
    lines = [json.dumps({"id": str(i), "captions": text}) for i, text in enumerate(texts)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    data = str(tmp_path / "texts.jsonl")
    options = IndexOptions(saved, data, tmp_path / "index", "text", binary=True)
    results = open_searcher(make(options)).show(ASK, DOCUMENTS)
    assert results
    for result in results:
        text = texts[int(result.id)]
        shared = explain.shared(model, ASK, text, "text", "text", mode="binary")
        assert_same_score(shared, result)


def test_bags_of_documents_have_norm_of_embeddings(model: TrainedModel) -> None:
    loose = dataclasses.replace(model, config=lexical_config(normalise=False))
    text = ["a big red circle a"]
    assert bags_of(model, text, "text", "query").data.tolist() == [1] * 4
    assert bags_of(model, text, "text", "document").data.tolist() == [0.5] * 4
    assert bags_of(loose, text, "text", "document").data.tolist() == [1] * 4


def assert_same_score(shared: explain.Shared, result: SearchResult) -> None:
    score = result.score
    assert score > 0
    assert shared.score == pytest.approx(score, rel=1e-5)
    assert sum(product for _, product, _ in shared.words) == pytest.approx(score, rel=1e-5)
    assert sum(share for *_, share in shared.words) == pytest.approx(1)
    products = {word: product for word, product, _ in shared.words}
    assert products == pytest.approx(dict(result.words), rel=1e-5)


def test_bag_shares_only_its_words(model: TrainedModel, scenes: SceneRecords) -> None:
    picture = scenes[0]["image"]
    for unknown in ("", "漢字", "[SEP]"):
        assert explain.shared(model, unknown, picture, mode="bag") == explain.Shared(0.0, [])
    shared = explain.shared(model, "red red blue", picture, mode="bag")
    assert {word for word, *_ in shared.words} <= {"red", "blue"}


def test_shared_rejects_wrong_mode(model: TrainedModel, scenes: SceneRecords) -> None:
    picture = scenes[0]["image"]
    with user_error("Unknown mode 'bags'"):
        explain.shared(model, ASK, picture, mode="bags")
    with user_error("needs a text as the document", "field 'image'"):
        explain.shared(model, ASK, picture, mode="binary")
    with user_error("needs a text as the query", "field 'image'"):
        explain.shared(model, picture, ASK, "image", "text", mode="bag")


def test_listing_of_bag(model: TrainedModel, scene: Path) -> None:
    item = listings.make_item(model, "a big red circle", "text", None)
    other = listings.partner(model, str(scene), None, item)
    text, image, shared = listings.explain(model, [item], other, mode="bag")
    assert text.title == "text: a big red circle, bag of words"
    assert sorted(text.words) == [("a", 1.0), ("big", 1.0), ("circle", 1.0), ("red", 1.0)]
    assert image.words == explain.strongest(model, scene, "image", None)
    assert shared.note.endswith("(mode bag)")
    unknown = listings.make_item(model, "漢字", "text", None)
    (part,) = listings.explain(model, [unknown])
    assert part.note.endswith("the vocabulary has none of its words")
    with user_error("The text for field 'text' is empty"):
        listings.make_item(model, " ", "text", None)
