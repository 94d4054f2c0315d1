"""Array fields: from a column or a memory-mapped file, for each record or for each of its texts."""

import dataclasses
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from big_retrieval import config as configs
from big_retrieval.config import ArrayField, TextField
from big_retrieval.data.batches import try_record
from big_retrieval.data.build import make_readers, make_source
from big_retrieval.data.damage import Damage
from big_retrieval.data.fields.arrays import as_values
from big_retrieval.data.fields.reader import Tools
from big_retrieval.data.fields.stores import open_store, save_store
from big_retrieval.data.pipeline import Reading, eval_batches
from big_retrieval.data.sources import RecordSource
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.errors import Damaged, UserError
from tests.helpers import tiny
from tests.readers import train_batch_of

COUNT = 6
TOKENIZER = wordpiece_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz"])
VALUES = np.random.default_rng(0).normal(size=(COUNT, 2, 3)).astype(np.float32)


def texts_of(number: int) -> list[str]:
    """1, 2 or 3 texts, no two alike."""
    return ["abcdefghij"[number] + " x" * (place + 1) for place in range(1 + number % 3)]


def rows(**changes: Any) -> list[dict[str, Any]]:
    return [
        {"captions": texts_of(n), "a": VALUES[n].tolist()} | {k: v[n] for k, v in changes.items()}
        for n in range(COUNT)
    ]


def source(folder: Path, records: list[dict[str, Any]] | None = None) -> RecordSource:
    lines = map(json.dumps, rows() if records is None else records)
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    return make_source(configs.Pairs(path=str(folder / "pairs.jsonl"), image=""))


def readers(of: RecordSource | None, **keys: Any) -> dict[str, Any]:
    keys = {"shape": (2, 3), **keys}
    fields = {"text": TextField(length=8), "array": ArrayField(**keys)}
    tools = Tools(TOKENIZER, fields=fields, source=of)
    return {name: field.build(tools) for name, field in fields.items()}


def batch_of(
    of: RecordSource, read: dict[str, Any], reading: Reading | None = None
) -> dict[str, Any]:
    try_record(of, read)
    return train_batch_of(of, read, size=COUNT, reading=reading)


def test_array_field_reads_lists_and_moves_no_other_draw(tmp_path: Path) -> None:
    of = source(tmp_path)
    batch = batch_of(of, readers(of, column="a"))
    np.testing.assert_array_equal(batch["array"]["values"], VALUES[batch["record"]])
    assert batch["array"].keys() == {"values"}
    plain = batch_of(of, {"text": readers(of, column="a")["text"]})
    np.testing.assert_array_equal(plain["text"]["ids"], batch["text"]["ids"])


def test_array_field_reads_a_parquet_column(tmp_path: Path) -> None:
    table = pa.table({"captions": [texts_of(n) for n in range(COUNT)], "a": VALUES.tolist()})
    pq.write_table(table, tmp_path / "pairs.parquet")
    of = make_source(configs.Pairs(path=str(tmp_path / "pairs.parquet"), image=""))
    batch = batch_of(of, readers(of, column="a"))
    np.testing.assert_array_equal(batch["array"]["values"], VALUES[batch["record"]])


@pytest.mark.parametrize("stored", ["float32", "float16", "int64"])
def test_array_field_reads_rows_of_a_file_by_record(tmp_path: Path, stored: str) -> None:
    values = (VALUES * 8).astype(stored)
    np.save(tmp_path / "a.npy", values)
    of = source(tmp_path)
    read = pickle.loads(pickle.dumps(readers(of, file=str(tmp_path / "a.npy"))))
    batch = batch_of(of, read)
    np.testing.assert_array_equal(batch["array"]["values"], values[batch["record"]])
    assert batch["array"]["values"].dtype == np.float32
    assert isinstance(open_store(str(tmp_path / "a.npy")), np.memmap)


def test_open_store_rejects_a_file_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((6, 3000)))
    assert open_store(str(path))[5].sum() == 0
    os.truncate(path, 128)
    with pytest.raises(UserError, match=r"a\.npy was changed"):
        open_store(str(path))[5].sum()
    np.save(path, np.ones((6, 3000)))
    assert open_store(str(path))[5].sum() == 3000


def test_array_field_reads_rows_by_a_column_of_indices(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", VALUES)
    numbers = [5, 0, None, 2, 2, 1]
    of = source(tmp_path, rows(row=numbers))
    batch = batch_of(of, readers(of, file=str(tmp_path / "a.npy"), column="row", optional=True))
    for row, record in enumerate(batch["record"].tolist()):
        number = numbers[record]
        assert batch["array"]["present"][row] == (number is not None)
        expected = np.zeros((2, 3)) if number is None else VALUES[number]
        np.testing.assert_array_equal(batch["array"]["values"][row], expected)


ENDS = np.cumsum([0, *(len(texts_of(n)) for n in range(COUNT))])
FLAT = np.random.default_rng(1).normal(size=(ENDS[-1], 2, 3)).astype(np.float32)


@pytest.mark.parametrize("form", ["column", "file", "rows"])
def test_aligned_arrays_follow_the_drawn_text(tmp_path: Path, form: str) -> None:
    np.save(tmp_path / "a.npy", FLAT)
    places = [list(range(ENDS[n], ENDS[n + 1])) for n in range(COUNT)]
    of = source(tmp_path, rows(a=[FLAT[at].tolist() for at in places], row=places))
    keys: dict[str, Any] = {
        "column": {"column": "a"},
        "file": {"file": str(tmp_path / "a.npy")},
        "rows": {"file": str(tmp_path / "a.npy"), "column": "row"},
    }[form]
    read = readers(of, aligned_with="text", **keys)
    seen = set()
    for number in range(4):
        batch = train_batch_of(of, read, index=number)
        for row, record in enumerate(batch["record"].tolist()):
            text = int(batch["text"]["mask"][row].sum()) - 4  # texts differ by their words
            np.testing.assert_array_equal(batch["array"]["values"][row], FLAT[ENDS[record] + text])
            seen.add((record, text))
    assert len(seen) > COUNT
    if form == "file":
        return
    (batch,) = eval_batches(of, read, field="array", batch_size=16)  # all, with their owners
    np.testing.assert_array_equal(batch["array"]["values"][batch["valid"]], FLAT)
    owners = np.repeat(np.arange(COUNT), np.diff(ENDS))
    np.testing.assert_array_equal(batch["record"][batch["valid"]], owners)


@pytest.mark.parametrize(
    ("value", "dtype", "reason"),
    [
        ([[1, 2, 3]], "float32", "wrong shape, (1, 3) instead of (2, 3)"),
        ([[1, 2, 3], [4, 5]], "float32", "different lengths"),
        ([[1, 2, 3], [4, 5, None]], "float32", "something else than numbers, [[1, 2, 3]"),
        ([[1, 2, 3], [4, 5, "6"]], "float32", "something else than numbers"),
        ("abc", "float32", "something else than numbers, 'abc'"),
        ([[1, 2, 3], [4, 5, float("nan")]], "float32", "not finite in float32"),
        ([[1, 2, 3], [4, 5, 1e300]], "float32", "not finite in float32"),
        ([[1, 2, 3], [4, 5, 6.5]], "int32", "float64 instead of int32"),
        ([[1, 2, 3], [4, 5, 256]], "uint8", "do not fit into uint8"),
        ([[1, 2, 3], [4, 5, 1]], "bool", "int64 instead of bool"),
    ],
)
def test_as_values_rejects_wrong_values(value: Any, dtype: Any, reason: str) -> None:
    with pytest.raises(Damaged, match=f"line 2: 'a' .*{re.escape(reason)}"):
        as_values(value, ArrayField(shape=(2, 3), dtype=dtype), "'a'", "pairs.jsonl, line 2")


def test_damaged_array_is_listed_and_replaced(tmp_path: Path) -> None:
    of = source(tmp_path, rows(a=[*VALUES[:5].tolist(), [[1, 2]]]))
    damage = Damage(tmp_path / "damaged.jsonl", 1.0)
    batch = batch_of(of, readers(of, column="a"), Reading(0, damage=damage))
    assert 5 not in batch["record"]
    np.testing.assert_array_equal(batch["array"]["values"], VALUES[batch["record"]])
    (line,) = map(json.loads, (tmp_path / "damaged.jsonl").read_text().splitlines())
    assert "wrong shape" in line["why"]
    assert line["place"].endswith("pairs.jsonl, line 6")


def test_arrays_of_another_number_than_texts_are_damage(tmp_path: Path) -> None:
    of = source(tmp_path, rows(a=[[VALUES[0].tolist()]] * COUNT))
    damage = Damage(None, 1.0)
    read = readers(of, column="a", aligned_with="text")
    batch = batch_of(of, read, Reading(0, damage=damage))
    assert set(batch["record"].tolist()) <= {0, 3}  # those of one text
    assert damage.count
    with pytest.raises(Damaged, match="'a' has not one array for each text, but 1 for 2"):
        batch_of(of, read)


@pytest.mark.parametrize(
    ("row", "reason"), [(6, "no row 6"), (1.5, "not a row index"), (True, "not a row index")]
)
def test_wrong_row_index_is_damage(tmp_path: Path, row: Any, reason: str) -> None:
    np.save(tmp_path / "a.npy", VALUES)
    of = source(tmp_path, rows(row=[row] * COUNT))
    with pytest.raises(UserError, match=reason):
        batch_of(of, readers(of, file=str(tmp_path / "a.npy"), column="row"))


@pytest.mark.parametrize(
    ("saved", "keys", "words"),
    [
        (VALUES[:4], {}, "a.npy has 4 rows for 6 records of pairs"),
        (FLAT[:9], {"aligned_with": "text"}, "has 9 rows for 12 texts of 'text' of pairs"),
        (VALUES[:, 0], {}, "a.npy contains float32 [6, 3] instead of float32 [rows, 2, 3]"),
        (VALUES, {"dtype": "int32"}, "instead of int32 [rows, 2, 3]; set config.fields.array."),
        (np.array(["a"] * COUNT), {}, "a.npy contains <U1 [6]"),
        (None, {}, "cannot be read (No such file or directory)"),
        (b"nonsense", {}, "is not a .npy file ("),
        (np.array([{}]), {}, "is not a .npy file ("),
    ],
)  # fmt: skip
def test_try_record_rejects_files_that_do_not_fit(
    tmp_path: Path, saved: Any, keys: dict[str, Any], words: str
) -> None:
    path = tmp_path / "a.npy"
    if isinstance(saved, bytes):
        path.write_bytes(saved)
    elif saved is not None:
        np.save(path, saved, allow_pickle=True)
    of = source(tmp_path)
    with pytest.raises(UserError, match=re.escape(words)):
        try_record(of, readers(of, file=str(path), **keys))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"column": ""}, "config.fields.a has neither column nor file"),
        ({"shape": (0,)}, "config.fields.a.shape is (0,)"),
        ({"aligned_with": "image"}, "config.fields.a.aligned_with is 'image', not a text field"),
        ({"column": "", "file": "a.npy", "optional": True}, "config.fields.a.optional"),
        ({"column": "", "file": "a.npy", "side": "document", "tower": "image"},
         "config.fields.a has a file and no column"),
        ({"tower": "image"}, "config.fields.a.tower is 'image'"),
        ({"shares_head": "text"}, "config.fields.a.shares_head"),
        ({"side": "document", "tower": "image"}, "cannot read fields of type 'array'"),
    ],
)  # fmt: skip
def test_check_rejects_wrong_keys(keys: dict[str, Any], words: str) -> None:
    from big_retrieval.config.checks.fields import check_fields

    keys = {"shape": (2,), "column": "a", **keys}
    config = tiny()
    config = dataclasses.replace(config, fields={**config.fields, "a": ArrayField(**keys)})
    assert any(words in message for message in check_fields(config)), list(check_fields(config))


def test_targets_are_read_in_training_only() -> None:
    config = tiny()
    target = ArrayField(shape=(2,), generated=True)
    config = dataclasses.replace(config, fields={**config.fields, "a": target})
    of = make_source(config.data)
    assert make_readers(config, TOKENIZER).keys() == {"image", "text"}
    assert make_readers(config, TOKENIZER, of).keys() == {"a", "image", "text"}
    values = make_readers(config, TOKENIZER, of)["a"].value(of, 3, 0)
    np.testing.assert_array_equal(values, make_readers(config, None, of)["a"].value(of, 3, 0))
    assert values.shape == (2,)


@pytest.mark.parametrize("changed", ["", "rows", "order", "captions"])
def test_fingerprint_covers_rows_and_their_texts(tmp_path: Path, changed: str) -> None:
    def fingerprint(values: np.ndarray, records: list[dict[str, Any]]) -> str:
        np.save(tmp_path / "a.npy", values)
        of = source(tmp_path, records)
        assert readers(of, column="a")["array"].fingerprint() == ""
        return readers(of, file=str(tmp_path / "a.npy"), aligned_with="text")["array"].fingerprint()

    values, records = FLAT.copy(), rows()
    before = fingerprint(values, records)
    if changed == "rows":
        values[3, 1, 2] += 0.5
    if changed == "order":
        values = values[::-1]
    if changed == "captions":
        records[2]["captions"][0] += " y"
    assert (fingerprint(values, records) == before) == (not changed)


def test_aligned_file_fits_records_of_single_captions(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npy")
    save_store(path, FLAT, [text for n in range(COUNT) for text in texts_of(n)])
    source(tmp_path)
    pairs = configs.Pairs(path=str(tmp_path / "pairs.jsonl"), image="", each="captions")
    batch = batch_of(
        make_source(pairs), readers(make_source(pairs), file=path, aligned_with="text")
    )
    np.testing.assert_array_equal(batch["array"]["values"], FLAT[batch["record"]])


def test_try_record_rejects_a_file_of_other_texts(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npy")
    texts = [text for n in range(COUNT) for text in texts_of(n)]
    save_store(path, FLAT, texts)
    of = source(tmp_path)
    read = readers(of, file=path, aligned_with="text")
    assert batch_of(of, read)["array"]["values"].shape == (COUNT, 2, 3)
    save_store(path, FLAT, texts[::-1])
    words = f"{path} was not computed from 'text' of pairs (see {tmp_path}/a.texts.json)"
    with pytest.raises(UserError, match=re.escape(words)):
        try_record(of, read)
    (tmp_path / "a.texts.json").write_text("[")
    with pytest.raises(UserError, match=r"a\.texts\.json is not readable JSON"):
        try_record(of, read)
    with pytest.raises(ValueError, match="5 rows for 12 texts"):
        save_store(path, FLAT[:5], texts)
