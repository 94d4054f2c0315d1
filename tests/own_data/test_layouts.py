"""`train --data`: layouts of published data sets and of other libraries; what is refused."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from big_retrieval.data.build import make_source
from big_retrieval.errors import UserError
from big_retrieval.evals.trec import read_qrels
from big_retrieval.own_data import beir
from tests.own_data.test_prepare import (
    _machine,  # noqa: F401 - a fixture: two cores, no weights, a folder to work in
    both,
    caption,
    pictures,
    pixels,
    png,
    records,
    run,
    table,
    wanted,
)

TRAIN, OTHER = range(40), range(500, 515)  # numbers of the pictures of two splits


def five(number: int) -> tuple[str, ...]:
    return tuple(f"{caption(number)} by person {person}" for person in range(5))


def lines(path: str, rows: Sequence[Any]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def one_record(numbers: Sequence[int]) -> list[tuple[bytes, tuple[str, ...]]]:
    return sorted((pixels(number).tobytes(), five(number)) for number in numbers)


def each_split(config: Any, train: Any = TRAIN, validation: Any = OTHER, of: Any = five) -> None:
    """Both splits have their own images with their own captions."""
    found = records(config.data), records(config.evals["validation"].data)
    for here, numbers in zip(found, (train, validation), strict=True):
        wanted = sorted((pixels(n).tobytes(), of(n)) for n in numbers)
        assert sorted((x, tuple(texts)) for x, texts in here) == wanted


@pytest.mark.parametrize("where", ["beside the pictures", "above them"])
def test_splits_whose_pictures_have_the_same_names(where: str) -> None:
    """Hugging Face's imagefolder with metadata in each split, and tables above the folders."""
    for split, numbers in (("train", TRAIN), ("val", OTHER)):
        for at, number in enumerate(numbers):
            pictures(Path(f"data/{split}"), [number], f"{at}.png")
        file = f"data/{split}/metadata.csv" if "beside" in where else f"data/{split}.csv"
        rows = [(f"{at}.png", caption(number)) for at, number in enumerate(numbers)]
        table(Path(file), ["file_name", "text"], rows)
    each_split(run(), of=lambda n: (caption(n),))


def test_coco_takes_captions_and_leaves_the_other_annotations() -> None:
    for split, numbers in (("train", TRAIN), ("val", OTHER)):
        pictures(Path(f"data/{split}2017"), numbers, "{:012}.png")
        images = [{"id": n, "file_name": f"{n:012}.png", "license": 1} for n in numbers]
        said = [{"image_id": n, "id": n, "caption": text} for n in numbers for text in five(n)]
        boxes = [{"image_id": n, "id": n, "bbox": [0, 0, 1, 1]} for n in numbers]
        for kind, found in (("captions", said), ("instances", boxes)):
            whole = {"info": {}, "images": images, "annotations": found}
            lines(f"data/annotations/{kind}_{split}2017.json", [whole])
    each_split(run())
    one = run("data/annotations/captions_train2017.json", workdir="other")
    assert sorted(both(one)) == one_record(TRAIN)


def test_karpathys_splits() -> None:
    pictures(Path("data/flickr30k-images"), range(50))
    split = dict.fromkeys(range(50), "train") | dict.fromkeys(range(30, 40), "restval")
    split |= dict.fromkeys(range(40, 45), "val") | dict.fromkeys(range(45, 50), "test")
    rows = [
        {"filename": f"{n}.png", "split": split[n], "sentences": [{"raw": x} for x in five(n)]}
        for n in range(50)
    ]
    lines("data/dataset_flickr30k.json", [{"images": rows, "dataset": "flickr30k"}])
    config = run()
    each_split(config, TRAIN, range(40, 45))
    assert sorted(records(config.evals["test"].data)) == one_record(range(45, 50))


@pytest.mark.parametrize("form", ["by file", "lists", "lines"])
def test_json_of_captions_by_file_and_of_lists(form: str) -> None:
    for split, numbers in (("train", TRAIN), ("val", OTHER)):
        pictures(Path(f"data/{split}"), numbers)
    rows = {
        split: [{"image_id": f"{split}/{n}.png", "caption": five(n)} for n in numbers]
        for split, numbers in (("train", TRAIN), ("val", OTHER))
    }
    if form == "by file":
        whole = [{x["image_id"]: x["caption"] for each in rows.values() for x in each}]
    else:
        whole = rows["train"] + rows["val"] if form == "lines" else [{"version": 1, **rows}]
    lines("data/captions.json", whole)
    if form == "lists":
        each_split(run())
    else:
        assert sorted((x, tuple(y)) for x, y in both(run())) == one_record([*TRAIN, *OTHER])


@pytest.mark.parametrize(
    "name", ["results.csv", "captions.txt", "Flickr8k.token.txt", "rows.parquet"]
)
def test_five_rows_of_an_image_are_one_record(name: str, said: list[str]) -> None:
    """Flickr30k and Flickr8k as published, and a row for each caption with the image's content."""
    form = {"results.csv": "{0}.png| {1}| {2}", "captions.txt": '{0}.png,"{2}"'}.get(
        name, "{0}.png#{1}\t{2}"
    )
    rows = [(n, at, text) for n in TRAIN for at, text in enumerate(five(n))]
    header = {
        "results.csv": "image_name| comment_number| comment\n",
        "captions.txt": "image,caption\n",
    }
    if name == "rows.parquet":
        Path("data").mkdir()
        cells = [{"image": {"bytes": png(n), "path": f"{n}"}, "caption": x} for n, _, x in rows]
        pq.write_table(pa.Table.from_pylist(cells), "data/rows.parquet")
    else:
        pictures(Path("data/Images"), TRAIN)
        Path(f"data/{name}").write_text(
            header.get(name, "") + "".join(f"{form.format(*row)}\n" for row in rows)
        )
    config = run()
    assert sorted((x, tuple(texts)) for x, texts in both(config)) == one_record(TRAIN)
    assert "180 rows for train have 36 different images" in " ".join(said)


def test_a_column_says_the_split(said: list[str]) -> None:
    split = ["train"] * 30 + ["restval"] * 10 + ["val"] * 15 + ["extra"] * 5
    cells = [
        {"image": {"bytes": png(n), "path": None}, "text": caption(n), "split": split[at]}
        for at, n in enumerate([*TRAIN, *OTHER, *range(5)])
    ]
    Path("data").mkdir()
    pq.write_table(pa.Table.from_pylist(cells), "data/all.parquet")
    each_split(run(), of=lambda n: (caption(n),))
    assert "5 records left out, as their 'split' says no known split" in said


def test_copies_in_splits_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    for split, numbers in (("train", range(30)), ("val", range(27, 45))):
        rows = [(question(n), answer(n)) for n in numbers]
        table(Path(f"data/{split}.csv"), ["question", "answer"], rows)
    run()
    assert "3 of 18 records for validation have the text of one" in capsys.readouterr().err


def question(number: int) -> str:
    return f"what is {caption(number)}"


def answer(number: int) -> str:
    return f"the answer to {number} is that {caption(number)} is what it is"


ROWS = {
    "pairs": [{"anchor": question(n), "positive": answer(n)} for n in TRAIN],
    "lists": [[question(n), answer(n)] for n in TRAIN],
    "pos": [{"query": question(n), "pos": [answer(n)], "neg": [answer(n + 1)]} for n in TRAIN],
    "triplets": [
        {"anchor": question(n), "positive": answer(n), "negative": answer(n + 1)} for n in TRAIN
    ],
    "names": [
        {"query": question(n), "right": answer(n), "hard_negative_1": answer(n + 1)} for n in TRAIN
    ],
    "scores": [
        {"sentence1": question(n), "sentence2": answer(n % 100), "score": 0.9 if n < 100 else 0.1}
        for n in (*TRAIN, *range(100, 140))
    ],
}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", ROWS)
def test_pairs_of_sentence_transformers(form: str, packed: bool) -> None:
    lines("data.jsonl", ROWS[form])
    if packed:
        Path("data.jsonl.gz").write_bytes(gzip.compress(Path("data.jsonl").read_bytes()))
    config = run("data.jsonl.gz" if packed else "data.jsonl")
    query, document = (config.fields[name].column for name in ("query", "answer"))
    found = set()
    for source in map(make_source, (config.data, config.evals["validation"].data)):
        for row in map(source.__getitem__, range(len(source))):
            text = row[document]
            found.add((row[query], text[0] if isinstance(text, list) else text))
    assert found == {(question(n), answer(n)) for n in TRAIN}
    negatives = {"pos": "neg", "triplets": "negative", "names": "hard_negative_1"}.get(form, "")
    assert config.negatives.count == bool(negatives)
    assert not negatives or config.negatives.column == negatives


def test_verdicts_that_do_not_say_what_fits() -> None:
    rows = [{"premise": answer(n), "hypothesis": question(n), "label": n % 3} for n in TRAIN]
    lines("data.jsonl", rows)
    with pytest.raises(UserError, match=r"'label' \(0, 1, 2\) says how .* --score= \(empty\)"):
        run("data.jsonl")
    assert len(make_source(run("data.jsonl", score="").data)) == 36
    lines(
        "votes.jsonl", [{"question": question(n), "answer": answer(n), "score": n} for n in TRAIN]
    )
    assert len(make_source(run("votes.jsonl", workdir="other").data)) == 36


@pytest.mark.parametrize(
    ("name", "yes", "no"),
    [
        ("label", "True", "False"), ("label", "yes", "no"), ("is_duplicate", "true", "false"),
        ("is_correct", "1", "0"), ("Correct", "Yes", "No"),
    ],
)  # fmt: skip
def test_wrong_pairs_of_a_table_are_left_out(name: str, yes: str, no: str, said: list[str]) -> None:
    """A verdict may be a word; few rows are no class whose column could be taken for a class."""
    rows = [(question(n), answer(n), yes) for n in range(16)]
    rows += [(question(n), answer(n + 1), no) for n in range(16)]
    table(Path("data.csv"), ["asked", "said", name], rows)
    config = run("data.csv")
    found = map(make_source, (config.data, config.evals["validation"].data))
    texts = {(x[n]["asked"], x[n]["said"]) for x in found for n in range(len(x))}
    assert texts == {(question(n), answer(n)) for n in range(16)}
    assert any(f"column {name!r} is the verdict on a pair" in line for line in said)


def test_the_number_of_the_correct_answer_is_no_verdict() -> None:
    lines(
        "data.jsonl",
        [{"question": question(n), "answer": answer(n), "correct": n % 4} for n in TRAIN],
    )
    assert len(make_source(run("data.jsonl").data)) == 36


def beir_folder(splits: dict[str, range], form: str = "beir") -> None:
    count = 60
    if form == "beir":
        documents = [{"_id": f"d{n}", "title": f"t {n}", "text": answer(n)} for n in range(count)]
        lines("data/corpus.jsonl", documents)
        lines("data/queries.jsonl", [{"_id": f"q{n}", "text": question(n)} for n in range(count)])
    else:
        rows = "".join(f"{n}\t{answer(n)}\n" for n in range(count))
        Path("data").mkdir()
        Path("data/collection.tsv").write_text(rows)
    for split, numbers in splits.items():
        if form == "beir":
            rows = [(f"q{n}", f"d{n}", 1) for n in numbers] + [(f"q{numbers[0]}", "d59", 0)]
            table(Path(f"data/qrels/{split}.tsv"), ["query-id", "corpus-id", "score"], rows, "\t")
        else:
            rows = "".join(f"{n + 100}\t{question(n)}\n" for n in numbers)
            Path(f"data/queries.{split}.tsv").write_text(rows)
            rows = "".join(f"{n + 100}\t0\t{n}\t1\n" for n in numbers)
            Path(f"data/qrels.{split}.tsv").write_text(rows)


@pytest.mark.parametrize("form", ["beir", "marco"])
@pytest.mark.parametrize("most", [5_000, 30])
def test_queries_documents_and_judgements(
    form: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(beir.RANKED, True, most)
    beir_folder({"train": range(40), "dev": range(40, 50)}, form)
    config = run()
    train: Any = make_source(config.data)
    found = {(x["query"], x["text"]) for x in map(train.__getitem__, range(len(train)))}
    assert found == {(question(n), answer(n)) for n in range(40)}
    assert (config.evals["validation"].type, config.best_metric) == (
        "ranking",
        "ranking/validation/nDCG@10",
    )
    validation: Any = make_source(config.evals["validation"].data)
    sizes = len(validation.queries), len(validation.documents)
    judged = 10 + (form == "beir")
    assert sizes == (10, 60 if most > 60 else sizes[1])
    assert most > 60 or judged <= sizes[1] <= most
    assert config.fields["answer"].title == ("title" if form == "beir" else "")  # type: ignore[attr-defined]


def test_one_file_of_judgements_is_divided_by_queries() -> None:
    beir_folder({"test": range(40)})
    config = run()
    parts: list[Any] = [make_source(x) for x in (config.data, config.evals["validation"].data)]
    asked = [{x["query_id"] for x in map(each.__getitem__, range(len(each)))} for each in parts]
    assert not asked[0] & asked[1]
    assert len(asked[1]) == 4
    assert set(parts[0].qrels.score) == {1.0}  # the pair that is judged as wrong is not trained on
    assert asked[0] | asked[1] == {f"q{n}" for n in range(40)}
    with pytest.raises(UserError, match="whose columns are known: give --data alone"):
        run(workdir="other", query="text")
    beir_folder({"dev": range(40, 50)})
    with pytest.raises(UserError, match="none for training: call the one to train on"):
        run(workdir="other")


def test_squad_pairs_questions_with_their_paragraphs() -> None:
    asked = [
        {"question": question(n), "id": str(n), "answers": [{"text": "x"}], "is_impossible": False}
        for n in TRAIN
    ]
    asked.append({"question": "none", "id": "x", "answers": [], "is_impossible": True})
    articles = [{"title": "t", "paragraphs": [{"context": answer(n), "qas": [each]}]}
                for n, each in enumerate(asked)]  # fmt: skip
    lines("data/train-v2.0.json", [{"version": "v2.0", "data": articles}])
    config = run()
    assert len(make_source(config.data)) == 36
    columns = {name: field.column for name, field in config.fields.items()}
    assert columns == {"query": "question", "answer": "context"}


def test_a_table_of_a_spreadsheet_on_windows(said: list[str]) -> None:
    pictures(Path("data/images"), TRAIN, "cat {}.png")
    rows = [f"images\\cat {n}.png;Größe {caption(n)};{n},50" for n in TRAIN]
    rows[3] = "images\\cat 3.png;;3,50"
    text = "\ufeff" + "\r\n".join(["Bild;Beschreibung;Preis", *rows, ""])
    Path("data/export.csv").write_bytes(text.encode())
    found = sorted(text for _, (text,) in both(run()))
    assert found == sorted(f"Größe {caption(n)}" for n in TRAIN if n != 3)
    assert "export.csv: separated by semicolons, \\ in paths is read as /" in said


def test_img2datasets_files() -> None:
    for n in TRAIN:
        pictures(Path("data/00000"), [n], "{:09}.png")
        Path(f"data/00000/{n:09}.txt").write_text(caption(n))
        lines(f"data/00000/{n:09}.json", [{"caption": caption(n), "status": "success"}])
    lines("data/00000_stats.json", [{"count": 40}])
    pq.write_table(pa.table({"url": ["x"] * 40, "caption": ["y"] * 40}), "data/00000.parquet")
    for name in (".DS_Store", "Thumbs.db", "README.txt", "LICENSE", "__MACOSX/._1.png"):
        (Path("data") / name).parent.mkdir(exist_ok=True)
        (Path("data") / name).write_text("hello")
    assert sorted(both(run())) == sorted((pixels(n).tobytes(), (caption(n),)) for n in TRAIN)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.zip", "PK", ["unpack it first", "`unzip "]),
        ("00000.tar.gz", "x", ["`gunzip ", "00000.tar.gz`"]),
        ("t.jsonl.gz", "x", ["cannot be unpacked", "fetch it again"]),
        ("a.xlsx", "PK", ["save it as CSV"]),
        ("a.pdf", "%PDF", ["write its texts into a table"]),
        ("data-00000-of-00001.arrow", "x", ["load_from_disk('", "').to_parquet("]),
        ("t.tsv", "a caption of it\thttp://x.org/1.jpg\n" * 40, ["addresses", "img2dataset"]),
        ("t.jsonl", '{"question": "a", "positive_ctxs": [{"text": "x"}]}\n' * 40, ["config.Dpr"]),
        ("t.json", '{"annotations": [{"image_id": 1, "caption": 2}]}', ["looks like captions"]),
    ],
)  # fmt: skip
def test_what_is_refused_with_what_to_do(name: str, content: str, words: Sequence[str]) -> None:
    Path("data").mkdir()
    Path("data", name).write_text(content)
    Path("data/state.json").write_text("{}")
    for given in ("data", f"data/{name}"):
        with pytest.raises(UserError) as problem:
            run(given)
        assert all(word in str(problem.value) for word in words), problem.value


def test_rows_of_two_kinds_are_not_mixed() -> None:
    lines("data/clicks.jsonl", [{"query": question(n), "id": n, "clicks": 1} for n in TRAIN])
    lines("data/products.jsonl", [{"id": n, "title": answer(n)} for n in TRAIN])
    with pytest.raises(UserError, match=r"differ: .* on='id'\)\.to_csv\('joined.csv'"):
        run()
    lines("beir/corpus.jsonl", [{"_id": n, "title": "t", "text": answer(n)} for n in TRAIN])
    lines("beir/queries.jsonl", [{"_id": n, "text": question(n)} for n in TRAIN])
    with pytest.raises(UserError, match=r"no .*qrels/train\.tsv that says which"):
        run("beir")


def test_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    lines("my data/a.jsonl", ROWS["pairs"])
    assert len(make_source(run("~/my data/*.jsonl").data)) == 36


@pytest.mark.parametrize("images", ["images", "."])
def test_tables_in_several_folders_have_images_of_their_own(images: str) -> None:
    """Files of one name lie near each table; each caption stays with its own image."""
    for kind, numbers in (("cats", range(20)), ("dogs", range(20, 40))):
        for place, number in enumerate(numbers):
            pictures(Path("data") / kind / images, [number], f"{place}.png")
        rows = [{"file_name": f"{n - numbers[0]}.png", "text": caption(n)} for n in numbers]
        lines(f"data/{kind}/metadata.jsonl", rows)
    assert sorted(both(run())) == wanted(range(40))


def test_wrong_captions_are_told_and_not_trained_on(said: list[str]) -> None:
    pictures(Path("data"), TRAIN)
    rows = [(f"{n}.png", caption(n + 1), caption(n)) for n in TRAIN]
    table(Path("data/t.csv"), ["file", "negative_caption", "caption"], rows)
    assert sorted(both(run())) == wanted(TRAIN)
    assert any("'negative_caption' has wrong captions and is not used" in line for line in said)


@pytest.mark.parametrize("form", ["by file", "coco", "list"])
@pytest.mark.parametrize("images", ["images", "."])
def test_json_files_in_several_folders_have_images_of_their_own(form: str, images: str) -> None:
    """As tables in several folders do."""
    for kind, numbers in (("cats", range(20)), ("dogs", range(20, 40))):
        names = {f"{place}.png": number for place, number in enumerate(numbers)}
        for name, number in names.items():
            pictures(Path("data") / kind / images, [number], name)
        whole: Any = {name: [caption(number)] for name, number in names.items()}
        if form == "coco":
            whole = {
                "images": [{"id": n, "file_name": name} for name, n in names.items()],
                "annotations": [{"image_id": n, "caption": caption(n)} for n in names.values()],
            }
        elif form == "list":
            whole = [{"file": name, "caption": caption(n)} for name, n in names.items()]
        Path(f"data/{kind}/captions.json").write_text(json.dumps(whole))
    assert sorted(both(run())) == wanted(range(40))


def test_qrels_that_are_written_anew_keep_quotes_in_ids(tmp_path: Path) -> None:
    row = {"query-id": '"Weird" song', "corpus-id": '12"', "score": "1"}
    path = beir._write_judged(tmp_path / "qrels" / "test.tsv", [row])
    assert read_qrels(Path(path)) == {'"Weird" song': {'12"': 1.0}}
