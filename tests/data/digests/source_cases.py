"""Sources of a config over every format of tables, shards and folders."""

import json
from typing import Any

import numpy as np
import pyarrow as pa

from big_retrieval.config import ClassFolders, Karpathy, Mixture, Pairs, Tar
from big_retrieval.data.mixture import MixturePart
from tests.data.digests.cases import Case
from tests.data.digests.files import (
    SIDE,
    caption,
    delimited,
    json_lines,
    npy,
    npz,
    parquet,
    pictures,
    png,
    stacked,
    tar,
)

CAPTIONS, IMAGE = ("captions", "image"), ("image",)  # columns of batches
NUMBERS = range(10)
PICTURES = pictures("pictures", NUMBERS)
ROWS: list[dict[str, Any]] = [
    {"image": f"pictures/{n}.png", "captions": [caption(n), f"second {n}"], "kind": n % 2}
    for n in NUMBERS
]
CELLS = 'id,text,code\n007,"a ""red"" cat, old",1e3\n\n8,"two\nlines",NA\n9,,null\n10, é ☃ ,\n'
VALUES = """{"text": "a cat", "n": 1, "x": [1, "1", 1.0, true, null, {"b": {}, "a": [[]]}]}
{"n": 1.0, "text": ["a dog", "", null, "a car"]}

{"text": "b", "n": true, "x": {"z": 1, "a": 18446744073709551616, "e": 1e400, "s": "\\ud800"}}
{"text": "\\ud83d a house", "n": "1", "x": NaN, "é\\u0000": -0.0}
{"text": null, "n": null}
{"text": 5}
{"text": "cut
["a list"]
{"text": "d", "text": "twice", "id": 7}
"""
BROKEN = b'{"text": "a"}\r\n \r\n{"text": "caf\xe9"}\r\n\xff\xfe\r\n{"text": "b"}'
TYPES = {
    "text": ["a", None, "", "d"],
    "int": pa.array([1, None, -3, 2**40], pa.int64()),
    "small": pa.array([1, 2, 3, None], pa.int8()),
    "float": pa.array([0.1, None, float("nan"), 1.0], pa.float32()),
    "bool": [True, False, None, True],
    "lists": [["a", None], [], None, ["b"]],
    "nested": [{"a": [1], "b": None}, None, {"a": [], "b": "x"}, {"a": None, "b": ""}],
    "date": pa.array([0, 1, None, 2], pa.date32()),
    "words": pa.array(["x", "y", "x", None]).dictionary_encode(),
    "bytes": [b"\0", b"", None, b"abc"],
    "none": pa.nulls(4),
}
TABLES: dict[str, tuple[str, str | bytes]] = {  # rows as they are
    "csv_cells": ("t.csv", CELLS),
    "csv_byte_order_mark_and_crlf": ("t.csv", "\ufeff" + CELLS.replace("\n", "\r\n")),
    "csv_carriage_returns": ("t.csv", CELLS.replace("\n", "\r")),
    "csv_without_last_line_end": ("t.csv", "text,\na cat,1\n,2\n\na dog,"),
    "csv_columns_without_names": ("t.csv", "text,,\na,1,2\n"),
    "csv_windows_1252": ("t.csv", "id,text\n1,café\n".encode("cp1252")),
    "csv_utf16": ("t.csv", CELLS.encode("utf-16")),
    "csv_ragged": ("t.csv", "id,text\n1,a cat\n2,a dog,x\n3,a car\n"),
    "csv_name_twice": ("t.csv", "text,id,text\na,1,b\n"),
    "csv_header_alone": ("t.csv", "id,text\n"),
    "csv_empty": ("t.csv", ""),
    "tsv_cells": ("t.tsv", 'id\ttext\n1\t"a ""red"" cat"\n2\t"a\ttab"\n3\tan 8" disc\n4\t\n'),
    "json_lines_values": ("t.jsonl", "\ufeff" + VALUES),
    "json_lines_crlf_and_bytes": ("t.ndjson", BROKEN),
    "json_as_pairs": ("t.json", "[]"),
    "parquet_types": ("t.parquet", parquet(TYPES, 3)),
}


def damaged_images() -> str:
    rows = json.loads(json.dumps(ROWS))
    rows[2]["image"], rows[3]["image"], rows[4]["image"] = "gone.png", None, "http://x.org/1.png"
    del rows[5]["image"], rows[6]["captions"]
    rows[7]["image"] = [[[n, 0, 0] for n in range(SIDE)]] * SIDE
    return json_lines(rows)


def hard_negatives() -> str:
    rows: list[Any] = [
        {"q": f"is {n}?", "answer": caption(n), "negatives": [caption(n + 1), caption(n + 2)]}
        for n in NUMBERS
    ]
    rows[2]["negatives"] = [{"title": "t", "text": caption(9), "pool": 1}, {"text": caption(8)}]
    rows[3]["negatives"], rows[4]["negatives"], rows[5]["negatives"] = [], None, caption(6)
    return json_lines(rows)


def joined() -> dict[str, str]:
    """Returns four files of images, and one of their captions that lacks number 3."""
    images = [{"n": n, "image": row["image"]} for n, row in enumerate(ROWS)]
    said = [{"n": str(n), "captions": ROWS[n]["captions"], "image": "-"} for n in NUMBERS[::-1]]
    parts = {f"part-{file:02d}.jsonl": json_lines(images[file::4]) for file in range(4)}
    return {**parts, "said.jsonl": json_lines(x for x in said if x["n"] != "3")}


def samples(numbers: Any = NUMBERS) -> dict[str, str | bytes]:
    """Returns members of a tar: jpg or png, txt, json and cls of every number."""
    members: dict[str, str | bytes] = {}
    for n in numbers:
        members[f"a/{n:04d}.{'png' if n % 3 else 'jpg'}"] = png(n)
        members[f"a/{n:04d}.txt"] = f"{caption(n)}\n"
        members[f"a/{n:04d}.json"] = json.dumps({"caption": f"json {n}", "key": n, "image": None})
        members[f"a/{n:04d}.cls"] = f"{n % 4}\n"
    return members


ODD_MEMBERS = samples(range(4)) | {"a/.hidden": "x", "plain": "x", "a/9.seg.png": png(9)}
ODD_MEMBERS |= {"0005.JPG": png(5), "0005.TXT": "upper case", "0006.txt": "no picture"}
ODD_MEMBERS |= {"0007.jpg": b"broken", "0007.txt": " ", "0008.json": "{", "0008.png": png(8)}
ODD_MEMBERS |= {"a/0000.npy": b"x", "a/0000.txt": "comes again"}
BESIDE = {
    **pictures("data/a b", range(4), "ein_{}-x.png"),
    **pictures("data/c", range(4, 8)),
    **{f"data/a b/ein_{n}-x.txt": f"{caption(n)}\r\n\n second {n} " for n in range(3)},
    "data/c/4.png.txt": "café".encode("cp1252"),
    "data/c/5.json": '{"caption": ["x", " "], "text": "y"}',
    "data/texts/6.caption": "elsewhere",
}
LABELED = {"07": range(3), "cat": range(3, 6), "2": range(6, 9)}
SPLIT_FILE = [
    {
        "filename": f"{n}.png",
        "split": ("train", "restval", "val")[n % 3],
        "sentids": [n],
        "sentences": [{"raw": f"{caption(n)} by {x}", "sentid": x} for x in range(6)],
        **({"cocoid": n} if n % 2 else {"imgid": -n}),
    }
    for n in range(11)  # the last one has no picture
]
KARPATHY = {
    **pictures("images", NUMBERS),
    "dataset.json": json.dumps({"images": SPLIT_FILE, "dataset": "x"}),
}
SHARDS = {
    f"s/{n:05d}.tar": tar(samples(numbers))
    for n, numbers in enumerate((range(4), range(4, 7), range(8, 10)))
}
IN_FOLDERS = {
    f"{folder}/t.jsonl": json_lines(
        {"image": f"{n}.png", "captions": caption(n), "at": folder} for n in numbers
    )
    for folder, numbers in (("b", range(5, 10)), ("a", range(5)))
}
CONTENTS = [{"bytes": png(n) + bytes(2000), "path": "x.png"} for n in NUMBERS]
MANY = {"captions": [row["captions"] for row in ROWS], "kind": [row["kind"] for row in ROWS]}
LINES = {**PICTURES, "t.jsonl": json_lines(ROWS)}
LINES_AND_TAR = {**LINES, "t.tar": tar(samples(range(10, 16)))}
TEXT_ONLY: dict[str, Any] = {"image": "", "text": "text"}
CELLS_OF_IMAGES = [(x["image"], "|".join(x["captions"]), x["kind"]) for x in ROWS]
CELLS_UNDER_ROOT = [(", ".join(x["captions"]), x["image"].split("/")[1]) for x in ROWS]
PARTS = {
    "lines": MixturePart(Pairs(path="t.jsonl"), 3.0),
    "tar": MixturePart(Tar(path="t.tar"), 1.0),
}

CASES = {
    name: Case(dict([file]), Pairs(path=file[0], image="", text=""))
    for name, file in TABLES.items()
} | {
    "csv_column_that_is_missing": Case({"t.csv": "id\n1\n"}, Pairs(path="t.csv", **TEXT_ONLY)),
    "csv_images": Case(
        {**PICTURES, "t.csv": delimited([("file", "title", "kind"), *CELLS_OF_IMAGES])},
        Pairs(path="t.csv", image="file", text="title", separator="|"),
        CAPTIONS,
    ),
    "tsv_images_of_a_root_by_caption": Case(
        {**PICTURES, "t.tsv": delimited([CAPTIONS, *CELLS_UNDER_ROOT], "\t")},
        Pairs(path="t.tsv", root="pictures", each="captions", separator=", "),
        CAPTIONS,
    ),
    "json_lines_where": Case(
        {"t.jsonl": json_lines({"text": "a", "s": x} for x in (1, "1", 1.0, True, None, "01"))},
        Pairs(path="t.jsonl", where=("s=1",), **TEXT_ONLY),
    ),
    "json_lines_images": Case(LINES, Pairs(path="t.jsonl"), CAPTIONS),
    "json_lines_damaged_images": Case(
        {**PICTURES, "pictures/8.png": "no picture", "t.jsonl": damaged_images()},
        Pairs(path="t.jsonl"),
        CAPTIONS,
    ),
    "json_lines_each_caption_of_chosen_rows": Case(
        {**LINES, "rows.npy": npy(7, 1, 1, 4)},
        Pairs(path="t.jsonl", rows="rows.npy", each="captions"),
        CAPTIONS,
    ),
    "json_lines_in_several_folders": Case(
        {**pictures("a", range(5)), **pictures("b", range(5, 10)), **IN_FOLDERS},
        Pairs(path="*/t.jsonl"),
        CAPTIONS,
    ),
    "json_lines_of_a_range_joined": Case(
        {**PICTURES, **joined()},
        Pairs(path="part-{00..03}.jsonl", join="said.jsonl", on="n"),
        CAPTIONS,
    ),
    "json_lines_hard_negatives": Case(
        {"t.jsonl": hard_negatives()},
        Pairs(path="t.jsonl", image="", text="q"),
        ("captions", "answer"),
        negatives=2,
    ),
    "mixed_endings": Case(
        {
            "a1.jsonl": '{"text": "a cat", "n": 1}',
            "a2.csv": "n,text\n1,a dog\n",
            "a3.parquet": parquet({"text": ["a car"], "n": [1]}),
        },
        Pairs(path="a*", **TEXT_ONLY),
    ),
    "parquet_images_in_groups": Case(
        {"t.parquet": parquet({"image": CONTENTS, **MANY}, 4)}, Pairs(path="t.parquet"), CAPTIONS
    ),
    "parquet_pixels_and_paths": Case(
        {
            **PICTURES,
            "a1.parquet": parquet({"image": stacked([0]).tolist(), "captions": ["a list"]}),
            "a2.parquet": parquet({"image": [png(1)], "captions": ["bytes"]}),
            "a3.parquet": parquet(ROWS[2:8]),
        },
        Pairs(path="a*.parquet"),
        CAPTIONS,
    ),
    "parquet_where_a_float": Case(
        {"t.parquet": parquet({"text": ["a", "b", "c"], "k": [1.0, 2.0, None]})},
        Pairs(path="t.parquet", where=("k=1.0",), **TEXT_ONLY),
    ),
    "npz_arrays": Case(
        {"t.npz": npz(image=stacked(NUMBERS), k=np.arange(10, dtype=np.int16), s=np.full(10, "a"))},
        Pairs(path="t.npz", text=""),
        IMAGE,
    ),
    "tar_shards": Case(SHARDS, Tar(path="s/{00000..00002}.tar"), CAPTIONS),
    "tar_captions_of_json_and_chosen_samples": Case(
        {"t.tar": tar(samples()), "rows.npy": npy(9, 0, 5)},
        Tar(path="t.tar", text="json:caption", rows="rows.npy"),
        CAPTIONS,
    ),
    "tar_odd_members": Case({"t.tar": tar(ODD_MEMBERS)}, Tar(path="t.tar"), CAPTIONS),
    "tar_cut_short": Case({"t.tar": tar(samples())[: 9 * 2048]}, Tar(path="t.tar"), CAPTIONS),
    "pictures_with_captions_beside": Case(BESIDE, Pairs(path="data"), CAPTIONS),
    "class_folders": Case(
        {x: y for label, n in LABELED.items() for x, y in pictures(f"data/{label}", n).items()},
        ClassFolders(path="data"),
        IMAGE,
    ),
    "karpathy_splits": Case(
        KARPATHY, Karpathy(path="dataset.json", split="train+restval", skip_missing=True), CAPTIONS
    ),
    "karpathy_each_caption": Case(
        KARPATHY, Karpathy(path="dataset.json", each="captions", captions=2), CAPTIONS
    ),
    "karpathy_missing_image": Case(KARPATHY, Karpathy(path="dataset.json", split="restval")),
    "mixture": Case(LINES_AND_TAR, Mixture(parts=PARTS), CAPTIONS),
}
