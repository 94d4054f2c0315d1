"""Marqo-GS-10M from small files in its two forms, to ArrayRecord and back."""

import csv
import json
import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from big_retrieval import config
from big_retrieval.data.build import make_source
from big_retrieval.data.builders import marqo_gs_10m
from big_retrieval.data.formats.prepared import Prepared
from big_retrieval.data.images.decoding import decode, picture
from big_retrieval.data.judged import split_files
from big_retrieval.errors import UserError

COLUMNS = ["query", "product_id", "title", "image_local", "score_linear", "position"]


def write_csv(path, rows, columns=COLUMNS):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])


def pair(number):
    title = "" if number == 0 else f"titlé, {number}"
    image = "gone.png" if number == 3 else f"images/{number % 3}.png"
    return [f"query {number // 4}", f"p{number}", title, image, 100 - number, number + 1]


@pytest.fixture
def folder(tmp_path):
    here = tmp_path / "marqo"
    (here / "images").mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (5, 4), (number, 0, 0)).save(here / "images" / f"{number}.png")
    write_csv(here / "query_0_product_id_0.csv", [pair(number) for number in range(8)])
    rows = [["q", "p9", 7, "own id"]]
    names = ["query", "product_id", "score_linear", "query_id"]
    write_csv(here / "query_1_product_id_1.csv", rows, names)
    (here / "corpus_1.json").write_text(json.dumps({"p0": {"title": "of the corpus"}}))
    elsewhere = {"p9": {"title": "nine", "image_local": "old/place/2.png"}}
    (here / "corpus_2.json").write_text(json.dumps(elsewhere))
    return here


def rows_of(builder, split):
    table = Prepared("", split, str(builder.data_path), "image")
    return [table.row(index) for index in range(len(table))]


def test_files_on_the_disk(folder, tmp_path) -> None:
    builder = marqo_gs_10m.prepare(folder, tmp_path / "out")
    assert set(builder.info.splits) == {"in_domain", "zero_shot"}
    rows = rows_of(builder, "in_domain")
    assert len(rows) == 8
    for number, row in enumerate(rows):
        query, product, title, _, score, position = pair(number)
        assert (row["query"], row["query_id"], row["product_id"]) == (query, query, product)
        assert (row["score_linear"], row["position"]) == (score, position)
        assert row["title"] == (title or "of the corpus")
        if number == 3:
            assert row["image"] == b""
        else:
            assert decode(row["image"])[0, 0].tolist() == [number % 3, 0, 0]
    (row,) = rows_of(builder, "zero_shot")
    assert decode(row.pop("image"))[0, 0, 0] == 2
    assert row == {
        "query": "q", "query_id": "own id", "product_id": "p9", "title": "nine",
        "score_linear": 7.0, "position": 0,
    }  # fmt: skip


def test_parquet_files_with_images_inside(folder, tmp_path) -> None:
    data = (folder / "images" / "1.png").read_bytes()
    images = [{"bytes": data, "path": None}, None, {"bytes": None, "path": "x"}]
    columns = {
        "image": pa.array(images, pa.struct({"bytes": pa.binary(), "path": pa.string()})),
        "query": ["a", "b", "c"], "product_id": ["1", "2", "3"], "position": [1, 2, 3],
        "title": ["one", None, "three"], "pair_id": ["x", "y", "z"],
        "score_linear": [100, 99, 98], "query_id": ["qa", "qb", "qc"],
    }  # fmt: skip
    (tmp_path / "hub" / "data").mkdir(parents=True)
    pq.write_table(pa.table(columns), tmp_path / "hub" / "data" / "novel_query-00000.parquet")
    builder = marqo_gs_10m.prepare(tmp_path / "hub", tmp_path / "out")
    rows = rows_of(builder, "novel_query")
    assert [row["image"] for row in rows] == [data, b"", b""]
    assert [row["title"] for row in rows] == ["one", "", "three"]
    assert [row["score_linear"] for row in rows] == [100, 99, 98]


def source(path, **keys):
    keys = {"document": "product_id", "score": "score_linear", "image": "image", **keys}
    return make_source(config.Graded(path=path, **keys))


def test_as_judged_pairs(folder, tmp_path, capsys) -> None:
    builder = marqo_gs_10m.prepare(folder, tmp_path / "out")
    for path in (builder.data_path, tmp_path / "out" / "marqo_gs_10m"):
        pairs = pickle.loads(pickle.dumps(source(f"tfds:{path}/in_domain")))
        assert (len(pairs), len(pairs.queries), len(pairs.documents)) == (8, 2, 8)
        assert list(pairs.captions())[:3] == ["query 0", "query 1", "of the corpus"]
        for number in range(8):
            record = pairs[number]
            assert record["product_id"] == f"p{number}"
            assert record["score_linear"] == 100 - number
            if number == 3:
                assert record["image"] is None
            else:
                assert picture(record["image"])[0, 0, 0] == number % 3
    both = source(
        f"tfds:{builder.data_path}/in_domain", where=("position=2",),
        documents=f"tfds:{builder.data_path}/in_domain",
    )  # fmt: skip
    assert (len(both), len(both.documents)) == (1, 8)
    assert picture(both.documents[5]["image"])[0, 0, 0] == 2
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "keys", "message"),
    [
        ("tfds:marqo_gs_10m", {}, "needs a data set and a split"),
        ("tfds:{}/gone/test", {}, "gone is not prepared under"),
        ("tfds:{}/marqo_gs_10m/train", {}, "has no split 'train'; it has in_domain, zero_shot"),
        ("tfds:{}/marqo_gs_10m/in_domain", {"image": "photo"}, "has no feature 'photo'"),
        ("tfds:{}/marqo_gs_10m/in_domain", {"score": "grade"}, "has no column 'grade'"),
        ("tfds:{}/gone/test", {"how_to_get": "ask a friend"}, "ask a friend"),
    ],
)
def test_what_is_not_prepared(folder, tmp_path, path, keys, message) -> None:
    marqo_gs_10m.prepare(folder, tmp_path)
    with pytest.raises(UserError, match=message):
        source(path.format(tmp_path), **keys)


def test_splitting_it(folder, tmp_path) -> None:
    builder = marqo_gs_10m.prepare(folder, tmp_path / "out")
    asked = config.Graded(
        path=f"tfds:{builder.data_path}/in_domain", document="product_id", score="score_linear",
        image="image",
    )  # fmt: skip
    options = split_files.SplitOptions(query_share=0.5)
    summary = split_files.split_files(asked.build(), asked, options, tmp_path / "split")
    assert sum(each["pairs"] for each in summary["splits"].values()) == 8
    documents = pq.read_table(tmp_path / "split" / "documents.parquet").to_pylist()
    assert [decode(x["image"])[0, 0, 0] if x["image"] else None for x in documents] == [
        0, 1, 2, None, 1, 2, 0, 1,
    ]  # fmt: skip


def test_the_command(folder, tmp_path) -> None:
    command = [sys.executable, "-m", "big_retrieval.data.builders.marqo_gs_10m"]
    out = f"--data_dir={tmp_path / 'out'}"
    done = subprocess.run(
        [*command, f"--manual_dir={folder}", out], capture_output=True, text=True, check=True
    )
    assert "8 pairs, 1 of them without an image" in done.stdout
    assert "not in the folder: novel_query, novel_document" in done.stdout
    path = tmp_path / "out" / "marqo_gs_10m" / "1.0.0"
    assert f"--config.data.path=tfds:{path}/in_domain" in done.stdout
    done = subprocess.run([*command, out], capture_output=True, text=True)
    assert done.returncode == 2
    assert "--manual_dir is missing. Download Marqo-GS-10M" in done.stderr


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ([["a", "1", 5]], ["query", "id", "score_linear"], "has no column 'product_id'"),
        ([["a", "1", ""]], ["query", "product_id", "score_linear"], "line 2 has no score_linear"),
        ([["a", "1", "x"]], ["query", "product_id", "score_linear"], "line 2: could not convert"),
        ([["", "1", 3]], ["query", "product_id", "score_linear"], "line 2 has no query"),
    ],
)
def test_damaged_files(tmp_path, rows, columns, message) -> None:
    write_csv(tmp_path / "query_0_product_id_0.csv", rows, columns)
    with pytest.raises(UserError, match=message):
        list(marqo_gs_10m.examples(tmp_path, "in_domain"))
    with pytest.raises(UserError, match=message):
        marqo_gs_10m.prepare(tmp_path, tmp_path / "out")


def test_what_is_not_there(tmp_path) -> None:
    with pytest.raises(UserError, match="is no folder"):
        marqo_gs_10m.prepare(tmp_path / "none", tmp_path)
    with pytest.raises(UserError, match="neither query_0_product_id_0"):
        marqo_gs_10m.prepare(tmp_path, tmp_path / "out")
    (tmp_path / "in_domain.parquet").write_bytes(b"no parquet")
    with pytest.raises(UserError, match="no readable Parquet file"):
        list(marqo_gs_10m.examples(tmp_path, "in_domain"))
    (tmp_path / "in_domain.parquet").unlink()
    write_csv(tmp_path / "query_0_product_id_0.csv", [pair(1)])
    (tmp_path / "corpus_1.json").write_text("[")
    with pytest.raises(UserError, match="is not a whole JSON list"):
        list(marqo_gs_10m.examples(tmp_path, "in_domain"))


def test_scores_keep_their_fractions(tmp_path) -> None:
    rows = [["a", "1", "5.25"]]
    write_csv(tmp_path / "query_0_product_id_0.csv", rows, ["query", "product_id", "score_linear"])
    (example,) = marqo_gs_10m.examples(tmp_path, "in_domain")
    assert np.float64(example["score_linear"]) == 5.25
