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
from big_retrieval.data.batches import RecordSpec, train_batch, try_record
from big_retrieval.data.build import make_readers, make_source
from big_retrieval.data.damage import Damage
from big_retrieval.data.fields.arrays import as_values
from big_retrieval.data.fields.reader import Tools
from big_retrieval.data.fields.stores import open_store, save_store
from big_retrieval.data.order import Order
from big_retrieval.data.pipeline import Reading, eval_batches, train_batches
from big_retrieval.data.sources import RecordSource
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.errors import Damaged, UserError
from tests.helpers import tiny

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


def source(folder: Path, records: list[dict[str, Any]]) -> RecordSource:
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, records)))
    return make_source(configs.Pairs(path=str(folder / "pairs.jsonl"), image=""))


def readers(of: RecordSource | None, **keys: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"shape": (2, 3), **keys}
    fields = {"text": TextField(length=8), "array": ArrayField(**given)}
    tools = Tools(TOKENIZER, fields=fields, source=of)
    return {name: field.build(tools) for name, field in fields.items()}


def batch_of(
    of: RecordSource, read: dict[str, Any], reading: Reading | None = None
) -> dict[str, Any]:
    try_record(of, read)
    how: Any = {"order": Order(len(of), 0), "batch_size": COUNT, "rows": np.arange(COUNT)}
    (batch,) = train_batches(of, fields=read, start_batch=0, stop_batch=1, reading=reading, **how)
    return batch


def drawn_text(batch: dict[str, Any], row: int) -> int:
    """Which of its texts a row has: the one with so many words."""
    return int(batch["text"]["mask"][row].sum()) - 4


def test_from_a_column_of_lists(tmp_path: Path) -> None:
    of = source(tmp_path, rows())
    batch = batch_of(of, readers(of, column="a"))
    np.testing.assert_array_equal(batch["array"]["values"], VALUES[batch["record"]])
    assert batch["array"].keys() == {"values"}
    plain = batch_of(of, {"text": readers(of, column="a")["text"]})
    np.testing.assert_array_equal(plain["text"]["ids"], batch["text"]["ids"])  # no other draws


def test_from_a_column_of_parquet_files(tmp_path: Path) -> None:
    table = pa.table({"captions": [texts_of(n) for n in range(COUNT)], "a": VALUES.tolist()})
    pq.write_table(table, tmp_path / "pairs.parquet")
    of = make_source(configs.Pairs(path=str(tmp_path / "pairs.parquet"), image=""))
    batch = batch_of(of, readers(of, column="a"))
    np.testing.assert_array_equal(batch["array"]["values"], VALUES[batch["record"]])


@pytest.mark.parametrize("stored", ["float32", "float16", "int64"])
def test_rows_of_a_file_in_the_order_of_the_records(tmp_path: Path, stored: str) -> None:
    values = (VALUES * 8).astype(stored)
    np.save(tmp_path / "a.npy", values)
    of = source(tmp_path, rows())
    read = pickle.loads(pickle.dumps(readers(of, file=str(tmp_path / "a.npy"))))
    batch = batch_of(of, read)
    np.testing.assert_array_equal(batch["array"]["values"], values[batch["record"]])
    assert batch["array"]["values"].dtype == np.float32
    assert isinstance(open_store(str(tmp_path / "a.npy")), np.memmap)


def test_a_file_that_is_cut_between_two_reads_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((6, 3000)))
    assert open_store(str(path))[5].sum() == 0
    os.truncate(path, 128)
    with pytest.raises(UserError, match=r"a\.npy was changed while it was in use\. Run the"):
        open_store(str(path))[5].sum()
    np.save(path, np.ones((6, 3000)))
    assert open_store(str(path))[5].sum() == 3000


def test_a_column_names_the_rows_of_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", VALUES)
    numbers = [5, 0, None, 2, 2, 1]
    of = source(tmp_path, rows(row=numbers))
    batch = batch_of(of, readers(of, file=str(tmp_path / "a.npy"), column="row", optional=True))
    for row, record in enumerate(batch["record"].tolist()):
        number = numbers[record]
        assert batch["array"]["present"][row] == (number is not None)
        wanted = np.zeros((2, 3)) if number is None else VALUES[number]
        np.testing.assert_array_equal(batch["array"]["values"][row], wanted)


ENDS = np.cumsum([0, *(len(texts_of(n)) for n in range(COUNT))])
FLAT = np.random.default_rng(1).normal(size=(ENDS[-1], 2, 3)).astype(np.float32)


@pytest.mark.parametrize("form", ["column", "file", "rows"])
def test_the_drawn_text_decides_which_array(tmp_path: Path, form: str) -> None:
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
        order = Order(COUNT, 0)
        batch = train_batch(of, RecordSpec(read), order, COUNT, np.arange(COUNT), number)
        for row, record in enumerate(batch["record"].tolist()):
            text = drawn_text(batch, row)
            np.testing.assert_array_equal(batch["array"]["values"][row], FLAT[ENDS[record] + text])
            seen.add((record, text))
    assert len(seen) > COUNT
    if form == "file":
        return
    (batch,) = eval_batches(of, read, field="array", batch_size=16)  # all, with their owners
    np.testing.assert_array_equal(batch["array"]["values"][batch["valid"]], FLAT)
    owners = np.repeat(np.arange(COUNT), np.diff(ENDS))
    np.testing.assert_array_equal(batch["record"][batch["valid"]], owners)


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    ([[1, 2, 3]], {}, "'a' has the wrong shape, (1, 3) instead of (2, 3)"),
    ([[1, 2, 3], [4, 5]], {}, "'a' has lists of different lengths"),
    ([[1, 2, 3], [4, 5, None]], {}, "'a' holds something else than numbers, [[1, 2, 3]"),
    ([[1, 2, 3], [4, 5, "6"]], {}, "'a' holds something else than numbers"),
    ([[1, 2, 3], [4, 5, float("nan")]], {}, "'a' holds a number that is not finite in float32"),
    ([[1, 2, 3], [4, 5, 1e300]], {}, "'a' holds a number that is not finite in float32"),
    ([[1, 2, 3], [4, 5, 6.5]], {"dtype": "int32"}, "'a' holds float64 instead of int32"),
    ([[1, 2, 3], [4, 5, 256]], {"dtype": "uint8"}, "'a' holds numbers that do not fit into uint8"),
    ([[1, 2, 3], [4, 5, 1]], {"dtype": "bool"}, "'a' holds int64 instead of bool"),
    ("abc", {}, "'a' holds something else than numbers, 'abc'"),
]


@pytest.mark.parametrize(("value", "keys", "words"), WRONG)
def test_wrong_values_are_damage(value: Any, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(Damaged, match=re.escape(words)):
        as_values(value, ArrayField(shape=(2, 3), **keys), "'a'", "pairs.jsonl, line 2")


def test_a_damaged_array_is_counted_named_and_replaced(tmp_path: Path) -> None:
    of = source(tmp_path, rows(a=[*VALUES[:5].tolist(), [[1, 2]]]))
    damage = Damage(tmp_path / "damaged.jsonl", 1.0)
    batch = batch_of(of, readers(of, column="a"), Reading(0, damage=damage))
    assert 5 not in batch["record"]
    np.testing.assert_array_equal(batch["array"]["values"], VALUES[batch["record"]])
    (line,) = map(json.loads, (tmp_path / "damaged.jsonl").read_text().splitlines())
    assert line["why"] == "'a' has the wrong shape, (1, 2) instead of (2, 3)"
    assert line["place"].endswith("pairs.jsonl, line 6")


def test_arrays_that_do_not_match_the_texts_are_damage(tmp_path: Path) -> None:
    of = source(tmp_path, rows(a=[[VALUES[0].tolist()]] * COUNT))
    damage = Damage(None, 1.0)
    read = readers(of, column="a", aligned_with="text")
    batch = batch_of(of, read, Reading(0, damage=damage))
    assert set(batch["record"].tolist()) <= {0, 3}  # those of one text
    assert damage.count
    with pytest.raises(Damaged, match="'a' has not one array for each text, but 1 for 2"):
        batch_of(of, read)


def test_a_row_that_the_file_lacks_is_damage(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", VALUES)
    for wrong, words in ((6, "asks for a row that .*, 6 of 6"), (1.5, "no number of a row"),
                         (True, "no number of a row")):  # fmt: skip
        of = source(tmp_path, rows(row=[wrong] * COUNT))
        with pytest.raises(UserError, match=words):
            batch_of(of, readers(of, file=str(tmp_path / "a.npy"), column="row"))


@pytest.mark.parametrize(
    ("saved", "keys", "words"),
    [
        (VALUES[:4], {}, "a.npy has 4 rows for 6 records of pairs; write one for each, or name a"),
        (FLAT[:9], {"aligned_with": "text"}, "has 9 rows for 12 texts of 'text' of pairs; write"),
        (VALUES[:, 0], {}, "a.npy holds float32 [6, 3], but float32 [rows, 2, 3] is wanted; set "),
        (VALUES, {"dtype": "int32"}, "but int32 [rows, 2, 3] is wanted; set config.fields.array."),
        (np.array(["a"] * COUNT), {}, "a.npy holds <U1 [6], but"),
        (None, {}, "cannot be read (No such file or directory); give another"),
        (b"nonsense", {}, "is no .npy file ("),
        (np.array([{}]), {}, "is no .npy file ("),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_end_the_start(
    tmp_path: Path, saved: Any, keys: dict[str, Any], words: str
) -> None:
    path = tmp_path / "a.npy"
    if isinstance(saved, bytes):
        path.write_bytes(saved)
    elif saved is not None:
        np.save(path, saved, allow_pickle=True)
    of = source(tmp_path, rows())
    with pytest.raises(UserError, match=re.escape(words)):
        try_record(of, readers(of, file=str(path), **keys))


CHECKS = [
    ({"column": ""}, "config.fields.a has neither column nor file"),
    ({"shape": (0,)}, "config.fields.a.shape is (0,); its sizes must be at least 1"),
    ({"aligned_with": "image"}, "config.fields.a.aligned_with is 'image', no text field (there"),
    ({"column": "", "file": "a.npy", "optional": True}, "config.fields.a.optional: every record"),
    ({"column": "", "file": "a.npy", "side": "document", "tower": "image"},
     "config.fields.a has a file and no column: its rows are those of the training records"),
    ({"tower": "image"}, "config.fields.a.tower is 'image', but no tower reads a field of side"),
    ({"shares_head": "text"}, "config.fields.a.shares_head: a field of side 'target' has no head"),
    ({"side": "document", "tower": "image"}, "cannot read fields of type 'array'; name another"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "words"), CHECKS)
def test_keys_are_checked(keys: dict[str, Any], words: str) -> None:
    from big_retrieval.config.checks.fields import check_fields

    given: dict[str, Any] = {"shape": (2,), "column": "a", **keys}
    config, field = tiny(), ArrayField(**given)
    config = dataclasses.replace(config, fields={**config.fields, "a": field})
    assert any(words in sentence for sentence in check_fields(config)), list(check_fields(config))


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
def test_a_file_is_recognised_by_its_rows_and_their_texts(tmp_path: Path, changed: str) -> None:
    found = []
    for values, records in ((FLAT, rows()), (FLAT.copy(), rows())):
        if found and changed == "rows":
            values[3, 1, 2] += 0.5
        if found and changed == "order":
            values = values[::-1]
        if found and changed == "captions":
            records[2]["captions"][0] += " y"
        np.save(tmp_path / "a.npy", values)
        of = source(tmp_path, records)
        read = readers(of, file=str(tmp_path / "a.npy"), aligned_with="text")["array"]
        found.append(read.fingerprint())
    assert (found[0] == found[1]) == (not changed)
    assert readers(of, column="a")["array"].fingerprint() == ""


def test_rows_of_texts_fit_records_of_single_captions(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npy")
    save_store(path, FLAT, [text for n in range(COUNT) for text in texts_of(n)])
    source(tmp_path, rows())
    pairs = configs.Pairs(path=str(tmp_path / "pairs.jsonl"), image="", each="captions")
    batch = batch_of(
        make_source(pairs), readers(make_source(pairs), file=path, aligned_with="text")
    )
    np.testing.assert_array_equal(batch["array"]["values"], FLAT[batch["record"]])


def test_a_file_that_knows_its_texts_is_for_no_others(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npy")
    texts = [text for n in range(COUNT) for text in texts_of(n)]
    save_store(path, FLAT, texts)
    of = source(tmp_path, rows())
    read = readers(of, file=path, aligned_with="text")
    np.testing.assert_array_equal(batch_of(of, read)["array"]["values"].shape, (COUNT, 2, 3))
    save_store(path, FLAT, texts[::-1])
    words = f"{path} was made from other texts than those of 'text' of pairs ({tmp_path}/a.texts."
    with pytest.raises(UserError, match=re.escape(words)):
        try_record(of, read)
    (tmp_path / "a.texts.json").write_text("[")
    with pytest.raises(UserError, match=r"a\.texts\.json is not readable JSON"):
        try_record(of, read)
    with pytest.raises(ValueError, match="5 rows for 12 texts"):
        save_store(path, FLAT[:5], texts)
