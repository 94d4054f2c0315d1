"""Layouts of `train --data`."""

import gzip
import json
from typing import Any

import numpy as np

from tests.data.digests.cases import Case, Data
from tests.data.digests.files import (
    answer,
    caption,
    delimited,
    json_lines,
    npz,
    parquet,
    pictures,
    png,
    question,
    stacked,
    tar,
)

NUMBERS, OTHER = range(30), range(60, 72)  # pictures of two splits
SPLITS = {"train": NUMBERS, "val": OTHER}
PICTURES = pictures("data", NUMBERS)
ROWS = [(f"{n}.png", caption(n)) for n in NUMBERS]
QA = [(question(n), answer(n)) for n in NUMBERS]
CLICKS = [(question(n % 40), f"p{n % 25}", caption(n % 25), n % 7 + 1) for n in range(400)]


def five(number: int) -> list[str]:
    return [f"{caption(number)} by person {person}" for person in range(5)]


def answered(numbers: Any = NUMBERS) -> list[dict[str, str]]:
    return [{"question": question(n), "answer": answer(n)} for n in numbers]


def beside() -> dict[str, str | bytes]:
    """Returns pictures with two captions each, a broken picture and a blank text."""
    texts = {f"data/a b/{n}.txt": f"{caption(n)}\n\nsecond {n}\n" for n in NUMBERS}
    odd = {"data/a b/5.png": b"broken", "data/a b/7.txt": " "}
    return {**pictures("data/a b", NUMBERS), **texts, **odd}


def bars() -> str:
    """Returns a table as Flickr30k's, in which the last caption of a picture repeats the first."""
    said = {n: [*five(n), five(n)[0].replace(" ", "  ")] for n in NUMBERS}
    rows = [f"{n}.png| {i}| {x} .\n" for n in NUMBERS for i, x in enumerate(said[n])]
    return "image_name| comment_number| comment\n" + "".join(rows)


def faulty_rows() -> list[tuple[str, str, int]]:
    rows = [("file_name", "text", "n"), *((*row, 1) for row in ROWS)]
    rows[4:6] = [("3.png", "", 1), ("gone.png", "a caption", 1)]
    return rows


def in_folders() -> dict[str, str | bytes]:
    """Returns two folders, each with a table and with pictures of the same names."""
    files: dict[str, str | bytes] = {}
    for folder, numbers in (("cats", NUMBERS[:15]), ("dogs", NUMBERS[15:])):
        rows = [{"file": f"{at}.png", "text": caption(n)} for at, n in enumerate(numbers)]
        files[f"data/{folder}/metadata.jsonl"] = json_lines(rows)
        files |= {f"data/{folder}/{at}.png": png(n) for at, n in enumerate(numbers)}
    return files


def shard(numbers: Any, ending: str) -> bytes:
    return tar(
        {f"{n:04d}.{x}": y for n in numbers for x, y in ((ending, png(n)), ("txt", caption(n)))}
    )


def shard_of_json(numbers: Any) -> bytes:
    said = {f"{n:04d}.json": json.dumps({"caption": caption(n)}) for n in numbers}
    return tar(dict(sorted(({f"{n:04d}.png": png(n) for n in numbers} | said).items())))


def coco() -> dict[str, str | bytes]:
    files: dict[str, str | bytes] = {}
    for split, numbers in SPLITS.items():
        images = [{"id": n, "file_name": f"{n:012}.png"} for n in numbers]
        said = [{"image_id": n, "caption": f" {x}\n"} for n in numbers for x in five(n)]
        whole = json.dumps({"images": images, "annotations": said})
        files[f"data/annotations/captions_{split}2017.json"] = whole
        files |= pictures(f"data/{split}2017", numbers, "{:012}.png")
    return files


def karpathy(name: str) -> dict[str, str | bytes]:
    split = ["train"] * 20 + ["restval"] * 5 + ["val"] * 10 + ["test"] * 5
    rows = [
        {"filename": f"{n}.png", "split": split[n], "sentences": [{"raw": x} for x in five(n)]}
        for n in range(40)
    ]
    return {**pictures("data/images", range(40)), name: json.dumps({"images": rows})}


def squad() -> str:
    articles = [
        {"paragraphs": [{"context": answer(n), "qas": [{"question": question(n), "id": n}]}]}
        for n in NUMBERS
    ]
    articles[3]["paragraphs"][0]["qas"][0]["is_impossible"] = True
    return json.dumps({"version": "v2.0", "data": articles})


def beir(**splits: range) -> dict[str, str | bytes]:
    documents = [{"_id": f"d{n}", "title": f"t {n}", "text": answer(n)} for n in range(40)]
    queries = [{"_id": f"q{n}", "text": question(n)} for n in range(40)]
    files = {"corpus.jsonl": json_lines(documents), "queries.jsonl": json_lines(queries)}
    for split, numbers in splits.items():
        rows = [(f"q{n}", f"d{n}", 1) for n in numbers] + [("q0", "d39", 0), ("q1", "gone", 1)]
        rows.insert(0, ("query-id", "corpus-id", "score"))
        files[f"qrels/{split}.tsv"] = delimited(rows, "\t")
    return {f"data/{name}": content for name, content in files.items()}


def marco() -> dict[str, str | bytes]:
    files = {"collection.tsv": "".join(f"{n}\t{answer(n)}\n" for n in range(40))}
    for split, numbers in {"train": range(30), "dev.small": range(30, 40)}.items():
        files[f"queries.{split}.tsv"] = "".join(f"{n}\t{question(n)}\n" for n in numbers)
        files[f"qrels.{split}.tsv"] = "".join(f"{n}\t0\t{n}\t1\n" for n in numbers)
    return {f"data/{name}": content for name, content in files.items()}


def with_column_of_splits() -> str:
    rows = answered([*NUMBERS, *OTHER])
    for at, row in enumerate(rows):
        row["split"] = "train" if at < 30 else ("valid", "test", "x")[at % 3]
    return json_lines(rows)


TEXT_FILES: dict[str, tuple[str, str | bytes]] = {  # pairs of texts in one file
    "data_column_of_splits": ("data.jsonl", with_column_of_splits()),
    "data_lists_of_texts": ("data.jsonl", json_lines(QA)),
    "data_csv_in_gzip": (
        "data.csv.gz",
        gzip.compress(delimited([("a", "b"), *QA]).encode(), mtime=0),
    ),
    "data_triplets": (
        "data.jsonl",
        json_lines({**row, "negative": answer(n + 1)} for n, row in enumerate(answered())),
    ),
    "data_verdicts": (
        "data.tsv",
        delimited(
            [
                ("question", "answer", "is_correct"),
                *((question(n), answer(n + n % 2), ("no", "yes")[n % 2]) for n in range(60)),
            ],
            "\t",
        ),
    ),
    "data_clicks": ("data.csv", delimited([("query", "product_id", "title", "clicks"), *CLICKS])),
    "data_npz": (
        "data.npz",
        npz(image=stacked(NUMBERS), caption=np.array(list(map(caption, NUMBERS)))),
    ),
    "data_parquet_with_a_row_per_caption": (
        "data.parquet",
        parquet([{"image": png(n), "caption": text} for n in NUMBERS for text in five(n)]),
    ),
}
REFUSED: dict[str, tuple[str, str]] = {
    "data_archive": ("data/a.zip", "PK"),
    "data_too_few": ("data/t.csv", "question,answer\na b,c d\ne f,g h i\n"),
    "data_names_of_missing_images": ("data/t.csv", "file,text\n" + "a.png,a cat\n" * 30),
    "data_addresses": ("data/t.csv", "image,text\n" + "http://x.org/a.png,a cat\n" * 30),
    "data_passages_of_dpr": ("data/t.jsonl", '{"question": "a", "positive_ctxs": [{}]}\n' * 30),
    "data_odd_coco": ("data/t.json", '{"annotations": [{"image_id": 1, "caption": 2}]}'),
    "data_one_text": ("data/t.csv", "question,answer\n" + "a b,c d\n" * 30),
    "data_ragged": ("data/t.csv", "question,answer\n" + "a,b,c\n" * 30),
}
FOLDERS: dict[str, dict[str, Any]] = {
    "data_pictures_with_texts_beside": beside(),
    "data_pictures_with_texts_elsewhere": {
        **pictures("data/images/b", NUMBERS),
        **{f"data/texts/b/{n}.json": json.dumps({"caption": [caption(n), "x"]}) for n in NUMBERS},
    },
    "data_pictures_alone": PICTURES,
    "data_csv_beside_pictures": {**PICTURES, "data/t.csv": delimited(faulty_rows())},
    "data_semicolons_in_windows_1252": {
        **pictures("data/my pictures", NUMBERS),
        "data/t.csv": delimited(
            [("file", "title"), *((x, f" Café, {y} ") for x, y in ROWS)], ";"
        ).encode("cp1252"),
    },
    "data_utf16_with_semicolons": {
        **pictures("data/images", NUMBERS),
        "data/t.csv": delimited(
            [("2023", "Image", "Text"), *(("1", f"images/{x}", y) for x, y in ROWS)], ";"
        ).encode("utf-16"),
    },
    "data_tsv_without_header": {
        **PICTURES,
        "data/t.tsv": "".join(f'{file}\t"{text}\n' for file, text in ROWS),
    },
    "data_flickr_bars": {**PICTURES, "data/results.csv": bars()},
    "data_copies_of_pictures": {
        **PICTURES,
        **{f"data/copy {n}.png": png(n) for n in range(6)},
        "data/t.csv": delimited(
            [("file", "caption"), *ROWS, *((f"copy {n}.png", f"copy of {n}") for n in range(6))]
        ),
    },
    "data_json_lines_with_lists": {
        **PICTURES,
        "data/metadata.jsonl": json_lines(
            {"file": f"{n}.png", "captions": five(n)} for n in NUMBERS
        ),
    },
    "data_tables_in_several_folders": in_folders(),
    "data_tars": {
        "data/0.tar": shard(range(12), "jpg"),
        "data/1.tar": shard(range(12, 30), "webp"),
    },
    "data_coco": coco(),
    "data_karpathy": karpathy("data/dataset_flickr30k.json"),
    "data_squad": {"data/train-v2.0.json": squad()},
    "data_beir": beir(train=range(30), dev=range(30, 38)),
    "data_beir_with_one_file_of_judgements": beir(test=range(30)),
    "data_marco": marco(),
    "data_files_of_splits": {
        f"data/{split}.csv": delimited(
            [("question", "answer", "votes"), *((question(n), answer(n), n) for n in numbers)]
        )
        for split, numbers in {**SPLITS, "test": range(80, 85)}.items()
    },
    "data_parts": {f"data/part-{n}.jsonl": json_lines(answered(NUMBERS[n::3])) for n in range(3)},
    "data_clicks_on_pictures": {
        **pictures("data/images", range(25), "p{}.png"),
        "data/t.tsv": delimited(
            [("query", "image", "title", "score"), *((q, f"{p}.png", *x) for q, p, *x in CLICKS)],
            "\t",
        ),
    },
    "data_tables_that_differ": {
        "data/clicks.csv": "query,id,clicks\na,1,1\n",
        "data/products.csv": "id,title\n1,b\n",
    },
    **{name: dict([file]) for name, file in REFUSED.items()},
}
FLAGS = {
    "data_semicolons_in_windows_1252": {"images": "data/my pictures"},
    "data_clicks_on_pictures": {"images": "data/images"},
}
CLASSES = [pictures(f"data/class_{label}", NUMBERS[label::3]) for label in range(3)]

CASES = {
    **{name: Case(files, Data(flags=FLAGS.get(name, {}))) for name, files in FOLDERS.items()},
    **{name: Case(dict([file]), Data(file[0])) for name, file in TEXT_FILES.items()},
    "data_folders_of_classes": Case(
        CLASSES[0] | CLASSES[1] | CLASSES[2], Data(flags={"text": "folder"})
    ),
    "data_tars_of_splits": Case(
        {f"data/{split}-0.tar": shard_of_json(numbers) for split, numbers in SPLITS.items()},
        Data("data/*.tar"),
    ),
    "data_parquet_of_contents": Case(
        {
            f"data-{part}.parquet": parquet(
                {
                    "image": [{"bytes": png(n), "path": None} for n in NUMBERS[part::2]],
                    "caption": [five(n) for n in NUMBERS[part::2]],
                },
                4,
            )
            for part in range(2)
        },
        Data("data-*.parquet"),
    ),
}
