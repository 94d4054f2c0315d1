"""The page of examples: which records, whose words, and what is written."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from big_retrieval import explain
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.errors import UserError
from big_retrieval.evals.modes import words_shared
from big_retrieval.explain.examples import (
    TEXTS,
    TOP,
    ExampleOptions,
    ExplainedRecord,
    examples,
    open_data,
)
from big_retrieval.explain.pages import write_examples
from big_retrieval.explain.words import bags_of
from big_retrieval.inference.load import TrainedModel
from big_retrieval.sparse.listing import Shared
from tests.helpers import lexical_texts, tiny
from tests.report.test_report import check

WANTED = ExampleOptions("evals.test", count=30)


def test_examples_say_what_the_library_and_the_evaluation_say(
    model: TrainedModel, scenes: SceneRecords
) -> None:
    source, found = examples(model, WANTED)
    assert len(source) == len(found) == 30
    own = [bags_of(model, scenes[i]["captions"], "text", "query").sum(axis=0) for i in range(30)]
    embeddings = model.encode_images([scenes[i]["image"] for i in range(30)])
    share = sum(each.precision for each in found) / len(found)
    assert share == pytest.approx(
        words_shared(embeddings, scipy.sparse.csr_array(np.stack(own)), TOP)
    )
    one = found[7]
    picture, texts = scenes[7]["image"], scenes[7]["captions"]
    theirs = explain.strongest(model, picture, "image", None)
    assert [word for word, _ in one.words] == [word for word, _ in theirs]
    assert [text for text, _ in one.pairs] == list(texts[:TEXTS])
    shared = explain.shared(model, texts[1], picture)
    assert one.pairs[1][1].score == pytest.approx(shared.score, rel=1e-5)
    columns = {word for word, _ in one.words}
    assert {"a", "of"} <= one.text_words
    assert one.unseen == sorted(one.text_words - columns)


def test_the_draw_goes_by_the_seed_and_the_mode_is_kept(model: TrainedModel) -> None:
    records = {}
    for seed in (0, 0, 1):
        _, found = examples(model, ExampleOptions("evals.test", count=4, seed=seed, mode="bag"))
        records.setdefault(seed, []).append([each.record for each in found])
    assert records[0][0] == records[0][1] != records[1][0]
    text, common = found[0].pairs[0]
    shared = explain.shared(
        model, text, SceneRecords("test", size=32, count=30)[found[0].record]["image"], mode="bag"
    )
    assert common.score == pytest.approx(shared.score, rel=1e-5)
    _, texts = examples(model, ExampleOptions("evals.test", "text", "text", 2))
    assert isinstance(texts[0].item, str)
    with pytest.raises(UserError, match="Mode 'binary' needs a text as the document"):
        examples(model, ExampleOptions("evals.test", mode="binary"))


def test_a_page_of_pictures_and_texts(model: TrainedModel, tmp_path: Path) -> None:
    _, found = examples(model, ExampleOptions("evals.test", count=3))
    attack = "<script>&\"'"
    text = ExplainedRecord(
        9, attack, [(attack, 1.0), ("b", 0.5)], frozenset({"b", "c"}), [(attack, Shared(0, []))]
    )
    page = check(write_examples([*found, text], 4, tmp_path / "page", "Examples", "a note"))
    assert page.pictures == 3
    words = " ".join(page.words)
    assert words.count("✓") == 1 + sum(
        w in e.text_words for e in [*found, text] for w, _ in e.words[:4]
    )
    assert "In its texts, but not among its terms: c" in words
    assert "no word in common" in words


def test_damaged_records_are_no_examples(
    model: TrainedModel, some_damaged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = examples(model, ExampleOptions(some_damaged))
    assert [each.record for each in found] == [0, 3]
    assert "skipped: 2 of the records" in capsys.readouterr().err
    lines = Path(some_damaged).read_text().split("\n")[1:3]
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError, match="none of the records can be used"):
        examples(model, ExampleOptions(str(tmp_path / "bad.jsonl")))


def test_a_dense_model_has_no_examples(model: TrainedModel) -> None:
    with pytest.raises(UserError, match="The model has no lexical head"):
        examples(dataclasses.replace(model, config=tiny()), WANTED)


def test_a_file_of_texts_needs_no_images_and_no_captions(tmp_path: Path) -> None:
    (tmp_path / "queries.tsv").write_text("id\tquery\nq1\tred circle\nq2\tblue star\n")
    changes = lexical_texts()
    changes["fields"]["query"]["column"] = changes["fields"]["document"]["column"] = "query"
    source = open_data(tiny(**changes), str(tmp_path / "queries.tsv"))
    assert [source[index]["query"] for index in range(len(source))] == ["red circle", "blue star"]
    with pytest.raises(UserError, match="has no column 'image'"):
        open_data(tiny(), str(tmp_path / "queries.tsv"))
