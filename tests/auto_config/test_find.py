"""`train --data`: forms of data, their splits, and errors about files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from big_retrieval.auto_config import beir
from big_retrieval.data.build import make_source
from big_retrieval.data.formats import open_files
from big_retrieval.errors import UserError
from tests.auto_config.files import (
    all_records,
    answer,
    caption,
    expected,
    json_lines,
    pictures,
    pixels,
    question,
    records,
    run,
    table,
)

TRAIN, OTHER = range(40), range(500, 515)  # numbers of the pictures of two splits


def five(number: int) -> tuple[str, ...]:
    return tuple(f"{caption(number)} by person {person}" for person in range(5))


def with_five(numbers: Sequence[int]) -> list[tuple[bytes, tuple[str, ...]]]:
    return sorted((pixels(number).tobytes(), five(number)) for number in numbers)


@pytest.mark.parametrize("form", ["tables", "pictures"])
def test_find_evaluates_test_files_at_the_end(form: str) -> None:
    for name, numbers in (("train", TRAIN), ("test", OTHER)):
        pictures(f"data/{name}", numbers)
        rows = [(f"{n}.png", caption(n)) for n in numbers]
        if form == "tables":
            table(f"data/{name}/metadata.csv", ["file_name", "text"], rows)
        for n in numbers if form == "pictures" else ():
            Path(f"data/{name}/{n}.txt").write_text(caption(n))
    config = run()
    assert all_records(config) == expected(TRAIN)
    assert len(records(config.evals["validation"].data)) == 4
    assert sorted(records(config.evals["test"].data)) == expected(OTHER)
    assert config.best_metric == "retrieval/validation/R-mean"
    assert (config.evals["test"].every, config.evals["validation"].every) == (0, None)


def test_find_divides_by_column(said: list[str]) -> None:
    words = ["train"] * 40 + ["val"] * 15 + ["extra"] * 5
    pictures("data", [*TRAIN, *OTHER, *range(5)])
    numbers = [*TRAIN, *OTHER, *range(5)]
    rows = [(f"{n}.png", caption(n), word) for n, word in zip(numbers, words, strict=True)]
    table("data/all.csv", ["file", "text", "split"], rows)
    config: Any = run()
    assert (config.data.where, config.data.rows) == (("split=train",), "")
    assert sorted(records(config.data)) == expected(TRAIN)
    assert sorted(records(config.evals["validation"].data)) == expected(OTHER)
    assert "5 records left out: the value of 'split' is not a known split" in said


def test_find_takes_only_all_folders_as_splits() -> None:
    for kind, numbers in (("train", range(15)), ("car", range(15, 30))):
        pictures(f"data/{kind}", numbers)
        for n in numbers:
            Path(f"data/{kind}/{n}.txt").write_text(caption(n))
    assert all_records(run()) == expected(range(30))


def test_find_rejects_splits_without_training() -> None:
    for name in ("val", "test"):
        table(f"data/{name}.csv", ["question", "answer"], [("a", "b")])
    with pytest.raises(UserError, match=r"no file is for training. Call it train"):
        run()


def test_find_reads_table_named_like_picture() -> None:
    pictures("data/img", range(40))
    pictures("data", [99], "products.png")
    rows = [(f"img/{n}.png", caption(n)) for n in range(40)]
    table("data/products.csv", ["file", "caption"], rows)
    assert all_records(run()) == expected(range(40))


@pytest.mark.parametrize("data", ["data", "data/*/*.csv"])
def test_find_reads_images_next_to_each_table(data: str) -> None:
    """Files have the same names in both folders; each caption stays with its image."""
    for kind, numbers in (("cats", range(20)), ("dogs", range(20, 40))):
        for index, number in enumerate(numbers):
            pictures(f"data/{kind}", [number], f"{index}.png")
        rows = [(f"{index}.png", caption(number)) for index, number in enumerate(numbers)]
        table(f"data/{kind}/metadata.csv", ["file_name", "text"], rows)
    assert all_records(run(data)) == expected(TRAIN)


def test_find_separates_splits_of_karpathys_file() -> None:
    pictures("data/flickr30k-images", range(50))
    split = dict.fromkeys(range(50), "train") | dict.fromkeys(range(30, 40), "restval")
    split |= dict.fromkeys(range(40, 45), "val") | dict.fromkeys(range(45, 50), "test")
    rows = [
        {"filename": f"{n}.png", "split": split[n], "sentences": [{"raw": x} for x in five(n)]}
        for n in range(50)
    ]
    json_lines("data/dataset.json", [{"images": rows, "dataset": "flickr30k"}])
    config = run()
    assert sorted(records(config.data)) == with_five(TRAIN)
    assert sorted(records(config.evals["validation"].data)) == with_five(range(40, 45))
    assert sorted(records(config.evals["test"].data)) == with_five(range(45, 50))


def test_find_joins_rows_of_one_image(said: list[str]) -> None:
    """Otherwise captions of one image would be negatives of each other."""
    pictures("data/Images", TRAIN)
    lines = [f"{n}.png| {at}| {x}" for n in TRAIN for at, x in enumerate(five(n))]
    text = "\n".join(["image_name| comment_number| comment", *lines])
    Path("data/results.csv").write_text(text)
    assert all_records(run(images="data/Images")) == with_five(TRAIN)
    assert "180 rows for train have 36 different images" in " ".join(said)


def test_find_reads_coco_captions_with_images_elsewhere() -> None:
    pictures("elsewhere/train2017", TRAIN, "{:012}.png")
    images = [{"id": n, "file_name": f"{n:012}.png", "license": 1} for n in TRAIN]
    captions = [{"image_id": n, "id": n, "caption": text} for n in TRAIN for text in five(n)]
    boxes = [{"image_id": n, "id": n, "bbox": [0, 0, 1, 1]} for n in TRAIN]
    for kind, annotations in (("captions", captions), ("instances", boxes)):
        content = {"info": {}, "images": images, "annotations": annotations}
        json_lines(f"data/annotations/{kind}_train2017.json", [content])
    for images_folder in ("elsewhere", "elsewhere/train2017"):
        config = run(workdir=images_folder.replace("/", "_"), images=images_folder)
        assert all_records(config) == with_five(TRAIN)


def beir_folder(splits: dict[str, range], form: str = "beir") -> None:
    if form == "beir":
        documents = [{"_id": f"d{n}", "title": f"t {n}", "text": answer(n)} for n in range(60)]
        json_lines("data/corpus.jsonl", documents)
        queries = [{"_id": f"q{n}", "text": question(n)} for n in range(60)]
        json_lines("data/queries.jsonl", queries)
    else:
        Path("data").mkdir()
        text = "".join(f"{n}\t{answer(n)}\n" for n in range(60))
        Path("data/collection.tsv").write_text(text)
    for split, numbers in splits.items():
        if form == "beir":
            rows = [(f"q{n}", f"d{n}", 1) for n in numbers] + [(f"q{numbers[0]}", "d59", 0)]
            table(f"data/qrels/{split}.tsv", ["query-id", "corpus-id", "score"], rows, "\t")
        else:
            text = "".join(f"{n + 100}\t{question(n)}\n" for n in numbers)
            Path(f"data/queries.{split}.tsv").write_text(text)
            text = "".join(f"{n + 100}\t0\t{n}\t1\n" for n in numbers)
            Path(f"data/qrels.{split}.tsv").write_text(text)


@pytest.mark.parametrize("form", ["beir", "marco"])
@pytest.mark.parametrize("most", [5_000, 30])
def test_beir_task_limits_documents(form: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(beir.RANKED, True, most)
    beir_folder({"train": range(40), "dev": range(40, 50)}, form)
    config: Any = run()
    train: Any = make_source(config.data)
    pairs = {(x["query"], x["text"]) for x in map(train.__getitem__, range(len(train)))}
    assert pairs == {(question(n), answer(n)) for n in range(40)}
    assert config.evals["validation"].type == "ranking"
    assert config.best_metric == "ranking/validation/nDCG@10"
    validation: Any = make_source(config.evals["validation"].data)
    assert len(validation.queries) == 10
    assert 10 <= len(validation.documents) <= most
    assert most == 30 or len(validation.documents) == 60
    assert config.fields["answer"].title == ("title" if form == "beir" else "")


@pytest.mark.parametrize("line", ["60", "60\ta\tb"])
def test_beir_task_names_bad_line_of_collection(line: str) -> None:
    beir_folder({"train": range(40)}, "marco")
    with Path("data/collection.tsv").open("a") as file:
        file.write(line)
    with pytest.raises(
        UserError, match=r"data/collection\.tsv, line 61: the line has [13] cells; 2"
    ):
        run()


def test_beir_task_divides_one_file_by_queries() -> None:
    beir_folder({"test": range(40)})
    config = run()
    parts: list[Any] = [make_source(x) for x in (config.data, config.evals["validation"].data)]
    queries = [{x["query_id"] for x in map(each.__getitem__, range(len(each)))} for each in parts]
    assert not queries[0] & queries[1]
    assert len(queries[1]) == 4
    assert set(parts[0].qrels.score) == {1.0}  # the non-relevant document is not trained on
    assert queries[0] | queries[1] == {f"q{n}" for n in range(40)}
    with pytest.raises(UserError, match=r"whose columns are known\. Give --data alone"):
        run(workdir="other", query="text")
    beir_folder({"dev": range(40, 50)})
    with pytest.raises(UserError, match=r"has no qrels/train\.tsv"):
        run(workdir="other")


def test_find_reads_img2dataset_folder() -> None:
    for n in TRAIN:
        pictures("data/00000", [n], "{:09}.png")
        Path(f"data/00000/{n:09}.txt").write_text(caption(n))
        json_lines(f"data/00000/{n:09}.json", [{"caption": caption(n), "status": "success"}])
    json_lines("data/00000_stats.json", [{"count": 40}])
    pq.write_table(pa.table({"url": ["x"] * 40, "caption": ["y"] * 40}), "data/00000.parquet")
    for name in (".DS_Store", "Thumbs.db", "README.txt", "LICENSE", "__MACOSX/._1.png"):
        (Path("data") / name).parent.mkdir(exist_ok=True)
        (Path("data") / name).write_text("hello")
    assert all_records(run()) == expected(TRAIN)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.xlsx", "PK", ["save it as CSV"]),
        ("t.jsonl.gz", "x", ["unpack it first"]),
        ("t.csv", "file,caption\nhttp://x.org/1.jpg,a cat\n", ["is an address; download it"]),
        ("data-00000-of-00001.arrow", "x", ["to_parquet()"]),
        ("t.csv", "a cat.png,a cat\nb.png,b\n", ["it has a cat, a cat.png", "--image=COLUMN"]),
        ("t.json", '{"images": [], "sentences": 1, "filename": 2}', ["train, val or test"]),
        ("a.pdf", "%PDF", ["known forms are"]),
        ("Flickr8k.token.txt", "a.png#0\ta cat\n", ["call it .csv or .tsv"]),
    ],
)  # fmt: skip
def test_find_rejects_unknown_forms(name: str, content: str, words: Sequence[str]) -> None:
    Path("data").mkdir()
    Path("data", name).write_text(content)
    for given in ("data", f"data/{name}"):
        with pytest.raises(UserError) as problem:
            run(given)
        assert all(word in str(problem.value) for word in words), problem.value


def test_find_rejects_missing_and_empty_folders() -> None:
    with pytest.raises(UserError, match="there is no file or folder 'nowhere'"):
        run("nowhere")
    Path("data").mkdir()
    with pytest.raises(UserError, match="holds no data: known forms are"):
        run()


@pytest.mark.parametrize("name", ["br[1]", "mein Ordner [größe] (1)", "cab {1..3}", "Shirts, blue"])
@pytest.mark.parametrize("parts", [1, 2])
def test_find_reads_names_like_patterns(name: str, parts: int) -> None:
    rows = [{"question": f"{caption(n)}?", "answer": caption(n)} for n in range(40)]
    for part in range(parts):
        json_lines(f"{name}/part-{part}.jsonl", rows[part::parts])
    config = run(name, workdir=f"runs/w {name}")
    validation = config.evals["validation"].data
    assert len(make_source(config.data)) + len(make_source(validation)) == 40
    files = open_files.files_of_flag("data", f"{name}/part-0.jsonl,{name}/part-0.jsonl")
    assert files == [Path(name, "part-0.jsonl")] * 2


def test_find_expands_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    json_lines("my data/a.jsonl", [{"anchor": question(n), "positive": answer(n)} for n in TRAIN])
    assert len(make_source(run("~/my data/*.jsonl").data)) == 36
