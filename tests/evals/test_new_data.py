"""`evaluate --run=RUN --data=FILES`: which columns are read, and what is said where none fits."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.config import Pairs, Retrieval, Tar, recipe
from big_retrieval.errors import UserError
from big_retrieval.evals.new_data import ColumnFlags, on_files
from tests.helpers import tiny


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Tables with columns that the model was not trained on."""
    with (tmp_path / "shop.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file", "title"), ("a.png", "a cat"), ("b.png", "a dog")])
    rows = [{"question": "how?", "answer": "so"}, {"question": "why?", "answer": "because"}]
    (tmp_path / "qa.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "pictures").mkdir()
    return tmp_path


def texts(**keys: Any) -> Any:
    """A config of questions and answers."""
    fields = {
        "query": recipe.entry(configs.TextField(), column="question", tower="text"),
        "passage": recipe.entry(
            configs.TextField(), column="text", title="title", side="document", tower="text"
        ),
    }
    return tiny(fields=fields, **keys)


def test_named_columns_are_read_by_the_fields(files: Path) -> None:
    path = str(files / "shop.csv")
    found = on_files(tiny(), path, ColumnFlags(image="file", text="title", separator="|"))
    source = Pairs(path=path, image="file", text="title", separator="|")
    assert found.evals == {"data": Retrieval(data=source, query="text", document="image")}
    assert found.fields["image"].column == "image"  # type: ignore[attr-defined]
    assert found.fields["text"].column == "captions"  # type: ignore[attr-defined]
    records = found.evals["data"].data.build()  # type: ignore[union-attr]
    assert [records.value(n, "captions") for n in range(2)] == [("a cat",), ("a dog",)]


def test_columns_of_the_training_data_need_no_name(files: Path) -> None:
    trained = dataclasses.replace(tiny(), data=Pairs(path="x.csv", image="file", text="title"))
    data: Any = on_files(trained, str(files / "shop.csv"), ColumnFlags()).evals["data"].data
    assert (data.image, data.text) == ("file", "title")


def test_two_texts(files: Path) -> None:
    path = str(files / "qa.jsonl")
    found = on_files(texts(), path, ColumnFlags(document="answer"))
    fields: Any = found.fields
    assert (fields["query"].column, fields["passage"].column) == ("question", "answer")
    assert fields["passage"].title == ""  # which new files may lack
    records = found.evals["data"].data.build()  # type: ignore[union-attr]
    assert [records.value(0, column) for column in ("question", "answer")] == ["how?", "so"]


def test_shards(tmp_path: Path) -> None:
    (tmp_path / "a.tar").touch()
    path = str(tmp_path / "*.tar")
    found: Any = on_files(tiny(), path, ColumnFlags(text="json:caption")).evals["data"].data
    assert found == Tar(path=path, text="json:caption")


@pytest.mark.parametrize(
    ("config", "file", "flags", "words"),
    [
        (tiny, "shop.csv", {}, "no column 'image'; it has file, title: .* --image=COLUMN"),
        (tiny, "shop.csv", {"image": "file", "text": "name"}, "no column 'name'.* --text=COLUMN"),
        (tiny, "shop.csv", {"query": "title"}, "--query is not for this model.* --image=COLUMN"),
        (texts, "qa.jsonl", {}, "no column 'text'; it has answer, question.* --document=COLUMN"),
        (texts, "qa.jsonl", {"text": "answer"}, "--text is not for this model.* --query=COLUMN"),
        (tiny, "none.csv", {}, "--data: there is no file .*none.csv"),
        (tiny, "pictures", {}, "a folder without .*pictures --workdir=NEW --plan"),
    ],
)
def test_what_does_not_fit(
    files: Path, config: Any, file: str, flags: dict[str, str], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        on_files(config(), str(files / file), ColumnFlags(**flags))
