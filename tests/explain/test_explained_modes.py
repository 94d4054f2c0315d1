"""Pairs of which one side is a bag of words: the explanation adds up to what the search gives."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from big_retrieval import explain
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.errors import UserError
from big_retrieval.explain import listings
from big_retrieval.explain.words import bags_of
from big_retrieval.inference import load
from big_retrieval.inference.load import TrainedModel
from big_retrieval.retrieval.making import IndexOptions, make
from big_retrieval.retrieval.searching import SearchResult, open_searcher
from big_retrieval.train.checkpoint import write_model
from tests.explain.conftest import lexical_config

ASK = "a big red circle left of a small blue star"
DOCUMENTS = 6


@pytest.fixture
def saved(model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model as a checkpoint that is opened without compiling it again."""
    write_model(model, tmp_path / "model")
    monkeypatch.setattr(load, "load", lambda path, **how: model)
    return tmp_path / "model"


def test_products_add_up_to_the_score_of_a_search_in_images(
    model: TrainedModel, scenes: SceneRecords, saved: Path, tmp_path: Path
) -> None:
    pictures = [scenes[i]["image"] for i in range(DOCUMENTS)]
    np.savez(tmp_path / "pictures.npz", image=pictures, id=list("012345"))
    index = make(IndexOptions(saved, str(tmp_path / "pictures.npz"), tmp_path / "index"))
    for mode in ("parametric", "bag"):
        found = open_searcher(index, mode=mode).show(ASK, DOCUMENTS)
        assert len(found) == DOCUMENTS
        for each in found:
            _same(explain.shared(model, ASK, pictures[int(each.id)], mode=mode), each)


def test_products_add_up_to_the_score_of_a_search_in_bags(
    model: TrainedModel, scenes: SceneRecords, saved: Path, tmp_path: Path
) -> None:
    texts = [scenes[i]["captions"][0] for i in range(DOCUMENTS)]
    lines = [json.dumps({"id": str(i), "captions": text}) for i, text in enumerate(texts)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    options = IndexOptions(
        saved, str(tmp_path / "texts.jsonl"), tmp_path / "index", "text", binary=True
    )
    found = open_searcher(make(options)).show(ASK, DOCUMENTS)
    assert found
    for each in found:
        text = texts[int(each.id)]
        _same(explain.shared(model, ASK, text, "text", "text", mode="binary"), each)


def test_bags_of_documents_have_norm_1_where_representations_have_it(model: TrainedModel) -> None:
    loose = dataclasses.replace(model, config=lexical_config(normalise=False))
    text = ["a big red circle a"]
    assert bags_of(model, text, "text", "query").data.tolist() == [1] * 4
    assert bags_of(model, text, "text", "document").data.tolist() == [0.5] * 4
    assert bags_of(loose, text, "text", "document").data.tolist() == [1] * 4


def _same(shared: explain.Shared, found: SearchResult) -> None:
    """The same score, made of the same words, with shares of 1 in all."""
    score, words = found.score, dict(found.words)
    assert score > 0
    assert shared.score == pytest.approx(score, rel=1e-5)
    assert sum(product for _, product, _ in shared.words) == pytest.approx(score, rel=1e-5)
    assert sum(share for *_, share in shared.words) == pytest.approx(1)
    assert {word: product for word, product, _ in shared.words} == pytest.approx(words, rel=1e-5)


def test_a_bag_has_the_words_of_its_text_and_unknown_ones_match_nothing(
    model: TrainedModel, scenes: SceneRecords
) -> None:
    picture = scenes[0]["image"]
    for nothing in ("", "漢字", "[SEP]"):
        assert explain.shared(model, nothing, picture, mode="bag") == explain.Shared(0.0, [])
    found = explain.shared(model, "red red blue", picture, mode="bag")
    assert {word for word, *_ in found.words} <= {"red", "blue"}


def test_wrong_modes_are_named(model: TrainedModel, scenes: SceneRecords) -> None:
    picture = scenes[0]["image"]
    with pytest.raises(UserError, match="Unknown mode 'bags'"):
        explain.shared(model, ASK, picture, mode="bags")
    with pytest.raises(UserError, match="needs a text as the document, but field 'image'"):
        explain.shared(model, ASK, picture, mode="binary")
    with pytest.raises(UserError, match="needs a text as the query, but field 'image'"):
        explain.shared(model, picture, ASK, "image", "text", mode="bag")


def test_the_listing_of_a_bag(model: TrainedModel, scenes: SceneRecords, tmp_path: Path) -> None:
    from PIL import Image

    file = tmp_path / "scene.png"
    Image.fromarray(scenes[0]["image"]).save(file)
    item = listings.make_item(model, "a big red circle", "text", None)
    other = listings.partner(model, str(file), None, item)
    text, image, shared = listings.explain(model, [item], other, mode="bag")
    assert text.title == "text: a big red circle, bag of words"
    assert sorted(text.words) == [("a", 1.0), ("big", 1.0), ("circle", 1.0), ("red", 1.0)]
    assert image.words == explain.strongest(model, file, "image", None)
    assert shared.note.endswith("(mode bag)")
    unknown = listings.make_item(model, "漢字", "text", None)
    (part,) = listings.explain(model, [unknown])
    assert part.note.endswith(
        "none of them words of the text: the vocabulary has none of its words"
    )
    with pytest.raises(UserError, match="The text for field 'text' is empty"):
        listings.make_item(model, " ", "text", None)
