"""`evaluate --run=RUN --data=FILES`: what is read, and what is said where nothing fits."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.auto_config.columns import DataFlags
from big_retrieval.auto_config.evaluated import on_data
from big_retrieval.config import Config, Graded, Pairs, Ranking, Retrieval, Tar, recipe
from big_retrieval.data.build import make_source
from big_retrieval.errors import UserError
from tests.auto_config.files import caption, json_lines, pictures, records, table, tar_of
from tests.helpers import tiny

CLICKS = [(q, d, float(1 + (q + d) % 3)) for q in range(8) for d in range(q, q + 3)]


@pytest.fixture(autouse=True)
def _files(_machine: None) -> None:
    """Files with columns that no model here was trained on."""
    pictures("shop", range(12))
    table("shop/shop.csv", ("file", "title"), [(f"{n}.png", caption(n)) for n in range(12)])
    pictures("drawn", range(6))
    for number in range(5):
        Path(f"drawn/{number}.txt").write_text(f"{caption(number)}\nsecond {number}\n")
    rows = [{"question": f"how {n}?", "answer": f"so {caption(n)}"} for n in range(12)]
    json_lines("qa.jsonl", rows)


def texts(**keys: Any) -> Config:
    """A config of questions and answers."""
    fields = {
        "query": recipe.entry(configs.TextField(), column="question", tower="text"),
        "passage": recipe.entry(
            configs.TextField(), column="text", title="title", side="document", tower="text"
        ),
    }
    return tiny(fields=fields, **keys)


def evaluated_config(config: Config, data: str, separator: str = "", **flags: str) -> Config:
    return on_data(config, data, DataFlags(**flags), Path.cwd(), separator)


def evaluator_of(config: Config) -> Any:
    assert list(config.evals) == ["data"]
    return config.evals["data"]


def test_named_columns_are_read_by_the_fields() -> None:
    found = evaluated_config(tiny(), "shop/shop.csv", " ", image="file", text="title")
    assert (evaluator_of(found).query, evaluator_of(found).document) == ("text", "image")
    assert found.fields["image"].column == "image"  # type: ignore[attr-defined]
    assert found.fields["text"].column == "captions"  # type: ignore[attr-defined]
    own = records(evaluator_of(found).data)
    assert [words for _, words in own] == [tuple(caption(n).split()) for n in range(12)]
    by_hand = records(Pairs(path="shop/shop.csv", image="file", text="title", separator=" "))
    assert str(own) == str(by_hand)


def test_columns_need_no_name(said: list[str]) -> None:
    data = evaluator_of(evaluated_config(tiny(), "shop")).data
    assert (data.image, data.text) == ("file", "title")
    assert "column 'title' is the text (by its name)" in said


def test_columns_of_the_training_data_go_before_a_guess() -> None:
    rows = [(f"{n}.png", f"no {caption(n)}", caption(n)) for n in range(12)]
    table("shop/two.csv", ("file", "caption", "title"), rows)
    assert evaluator_of(evaluated_config(tiny(), "shop/two.csv")).data.text == "caption"
    trained = dataclasses.replace(tiny(), data=Pairs(path="x.csv", image="file", text="title"))
    assert evaluator_of(evaluated_config(trained, "shop/two.csv")).data.text == "title"
    assert (
        evaluator_of(evaluated_config(trained, "shop/two.csv", text="caption")).data.text
        == "caption"
    )


def test_pictures_with_text_files(said: list[str]) -> None:
    source = evaluator_of(evaluated_config(tiny(), "drawn")).data
    assert [words for _, words in records(source)] == [
        (caption(number), f"second {number}") for number in range(5)
    ]
    assert any("1 record for evaluation left out, the first: drawn, row 6" in x for x in said)


def test_on_data_evaluates_test_split(said: list[str]) -> None:
    for name, numbers in (("train", range(3)), ("val", range(3, 5)), ("test", range(5, 8))):
        pictures(f"split/{name}", numbers)
        for n in numbers:
            Path(f"split/{name}/{n}.txt").write_text(caption(n))
    found = records(evaluator_of(evaluated_config(tiny(), "split")).data)
    assert [words for _, words in found] == [(caption(n),) for n in range(5, 8)]
    assert "the records for test are evaluated" in said


def test_on_data_reads_questions_and_answers() -> None:
    found = evaluated_config(texts(), "qa.jsonl")
    fields: Any = found.fields
    assert (fields["query"].column, fields["passage"].column) == ("question", "answer")
    assert fields["passage"].title == ""  # which these data lack
    source = make_source(evaluator_of(found).data)
    assert [source.value(2, column) for column in ("question", "answer")] == [
        "how 2?", f"so {caption(2)}"
    ]  # fmt: skip
    with_titles = [(f"how {n}?", caption(n), f"t{n}") for n in range(12)]
    table("titles.csv", ("question", "text", "title"), with_titles)
    fields = evaluated_config(texts(), "titles.csv").fields
    assert (fields["passage"].column, fields["passage"].title) == ("text", "title")


def test_on_data_reads_shards() -> None:
    members = {n: {"json": json.dumps({"caption": caption(n)}).encode()} for n in range(12)}
    tar_of("a.tar", members)
    found = evaluator_of(evaluated_config(tiny(), "*.tar", text="json:caption")).data
    assert isinstance(found, Tar)
    assert found.text == "json:caption"
    assert [words for _, words in records(found)] == [(caption(n),) for n in range(12)]
    with pytest.raises(UserError, match="--separator is for tables"):
        evaluated_config(tiny(), "*.tar", ",", text="json:caption")


def test_judged_pairs_are_ranked() -> None:
    rows = [(f"ask {q}", f"{d}.png", caption(d), score) for q, d, score in CLICKS]
    table("shop/clicks.csv", ("query", "photo", "name", "clicks"), rows)
    found = evaluated_config(tiny(), "shop/clicks.csv", document_id="photo")
    assert isinstance(evaluator_of(found), Ranking)
    assert evaluator_of(found).data.text == ("query",)
    source: Any = make_source(evaluator_of(found).data)
    assert (source.value(4, "query"), source.qrels.score.max()) == ("ask 1", 100.0)
    assert found.fields["text"].column == "query"  # type: ignore[attr-defined]
    found = evaluated_config(texts(), "shop/clicks.csv", document="name")
    assert evaluator_of(found).data.text == ("query", "name")
    assert found.fields["passage"].column == "name"  # type: ignore[attr-defined]
    pairs = evaluated_config(texts(), "shop/clicks.csv", score="", query="query", document="name")
    assert isinstance(evaluator_of(pairs), Retrieval)


def test_judged_pairs_lack_what_a_field_reads() -> None:
    rows = [(f"ask {q}", f"p{d}", caption(d), score) for q, d, score in CLICKS]
    table("clicks.csv", ("query", "pid", "title", "clicks"), rows)
    assert isinstance(evaluator_of(evaluated_config(texts(), "clicks.csv")).data, Graded)
    with pytest.raises(UserError, match=r"field 'image', the image of a document.* --image=COLUMN"):
        evaluated_config(tiny(), "clicks.csv")


@pytest.mark.parametrize(
    ("config", "file", "said", "words"),
    [
        (
            tiny,
            "qa.jsonl",
            {},
            "no column is the image by its name; it has answer, .*--image=COLUMN",
        ),
        (tiny, "shop/shop.csv", {"text": "name"}, "no column 'name'.* Correct --text"),
        (tiny, "shop/shop.csv", {"query": "title"}, "--query is not for images.* --image, "),
        (texts, "qa.jsonl", {"text": "answer"}, "--text is not for pairs of texts.* --query, "),
        (texts, "shop/shop.csv", {}, "no column is the document"),
        (tiny, "none.csv", {}, "--data: there is no file .*none.csv"),
        (tiny, "beir/fiqa", {}, "--beir=.*beir --beir_sets=fiqa"),
    ],
)
def test_on_data_rejects_data_that_do_not_fit(
    config: Any, file: str, said: dict[str, str], words: str
) -> None:
    folder = Path("beir/fiqa")
    folder.mkdir(parents=True)
    for name in ("corpus", "queries"):
        (folder / f"{name}.jsonl").write_text('{"_id": "1", "text": "a"}\n')
    with pytest.raises(UserError, match=words):
        evaluated_config(config(), file, **said)


def test_separator_cuts_captions_of_merged_rows() -> None:
    rows = [(f"{n}.png", f"{text} {n}; other {text} {n}") for n in range(5) for text in ("a", "b")]
    table("shop/five.csv", ("file", "title"), rows)
    found = records(evaluator_of(evaluated_config(tiny(), "shop/five.csv", ";")).data)
    texts = [("a {0}", "other a {0}", "b {0}", "other b {0}")] * 5
    assert [words for _, words in found] == [
        tuple(text.format(n) for text in own) for n, own in enumerate(texts)
    ]
