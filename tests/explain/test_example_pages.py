"""Examples of a data set, and their page."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from big_retrieval import explain
from big_retrieval.data.synthetic.scenes import SceneRecords
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
from tests.helpers import lexical_texts, tiny, user_error
from tests.report.test_report import check

ALL = ExampleOptions("evals.test", count=30)


def test_examples_equal_explanations_and_evaluation(
    model: TrainedModel, scenes: SceneRecords
) -> None:
    source, records = examples(model, ALL)
    assert len(source) == len(records) == 30
    bags = [bags_of(model, scenes[i]["captions"], "text", "query").sum(axis=0) for i in range(30)]
    embeddings = model.encode_images([scenes[i]["image"] for i in range(30)])
    expected = words_shared(embeddings, scipy.sparse.csr_array(np.stack(bags)), TOP)
    assert np.mean([x.precision for x in records]) == pytest.approx(expected)
    one = records[7]
    picture, texts = scenes[7]["image"], scenes[7]["captions"]
    strongest = explain.strongest(model, picture, "image", None)
    assert [word for word, _ in one.words] == [word for word, _ in strongest]
    assert [text for text, _ in one.pairs] == list(texts[:TEXTS])
    shared = explain.shared(model, texts[1], picture)
    assert one.pairs[1][1].score == pytest.approx(shared.score, rel=1e-5)
    columns = {word for word, _ in one.words}
    assert {"a", "of"} <= one.text_words
    assert one.unseen == sorted(one.text_words - columns)


def test_examples_depend_on_seed_and_mode(model: TrainedModel, scenes: SceneRecords) -> None:
    drawn = []
    for seed in (0, 0, 1):
        _, records = examples(model, ExampleOptions("evals.test", count=4, seed=seed, mode="bag"))
        drawn.append([x.record for x in records])
    assert drawn[0] == drawn[1] != drawn[2]
    text, common = records[0].pairs[0]
    shared = explain.shared(model, text, scenes[records[0].record]["image"], mode="bag")
    assert common.score == pytest.approx(shared.score, rel=1e-5)
    _, texts = examples(model, ExampleOptions("evals.test", "text", "text", 2))
    assert isinstance(texts[0].item, str)
    with user_error("Mode 'binary' needs a text as the document"):
        examples(model, ExampleOptions("evals.test", mode="binary"))


def test_page_has_pictures_and_texts(model: TrainedModel, tmp_path: Path) -> None:
    _, records = examples(model, ExampleOptions("evals.test", count=3))
    attack = "<script>&\"'"
    text = ExplainedRecord(
        9, attack, [(attack, 1.0), ("b", 0.5)], frozenset({"b", "c"}), [(attack, Shared(0, []))]
    )
    records.append(text)
    page = check(write_examples(records, 4, tmp_path / "page", "Examples", "a note"))
    assert page.pictures == 3
    words = " ".join(page.words)
    assert words.count("✓") == 1 + sum(w in e.text_words for e in records for w, _ in e.words[:4])
    assert "In its texts, but not among its terms: c" in words
    assert "no word in common" in words


def test_examples_skip_damaged_records(
    model: TrainedModel, some_damaged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, records = examples(model, ExampleOptions(some_damaged))
    assert [x.record for x in records] == [0, 3]
    assert "skipped: 2 of the records" in capsys.readouterr().err
    lines = Path(some_damaged).read_text().split("\n")[1:3]
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    with user_error("none of the records can be used"):
        examples(model, ExampleOptions(str(tmp_path / "bad.jsonl")))


def test_open_data_reads_file_of_texts(tmp_path: Path) -> None:
    (tmp_path / "queries.tsv").write_text("id\tquery\nq1\tred circle\nq2\tblue star\n")
    changes = lexical_texts()
    changes["fields"]["query"]["column"] = changes["fields"]["document"]["column"] = "query"
    source = open_data(tiny(**changes), str(tmp_path / "queries.tsv"))
    assert [source[index]["query"] for index in range(len(source))] == ["red circle", "blue star"]
    with user_error("has no column 'image'"):
        open_data(tiny(), str(tmp_path / "queries.tsv"))
