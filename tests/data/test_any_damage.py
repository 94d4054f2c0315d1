"""Any exception while a record is read, decoded or tokenized damages this record only."""

import struct

import numpy as np
import pytest

from big_retrieval.data.batches import RecordSpec, train_batch, try_record
from big_retrieval.data.damage import record_at
from big_retrieval.data.images.decoding import Encoded
from big_retrieval.data.negatives import NegativeSampling
from big_retrieval.data.order import Order
from big_retrieval.data.pipeline import Reading, eval_batches
from big_retrieval.data.sources import RecordSource, as_texts
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.errors import Damaged, UserError
from big_retrieval.runtime import activity as notes
from tests.fuzz import cases
from tests.readers import image_reader, text_reader, train_batch_of

COUNT, BAD = 12, 5


class PanicException(BaseException):
    """Named like the exception of a panic in Rust code, which is not an `Exception`."""


PROBLEMS = [
    RuntimeError("Failed to decode image"),
    struct.error("unpack requires a buffer"),
    RecursionError("too deep"),
    MemoryError(),
    OSError(5, "Input/output error"),
    AssertionError(),
    PanicException("index out of bounds"),
]


class Unsound(RecordSource):
    """Records with a text each; `change` replaces record BAD."""

    name = "unsound"

    def __init__(self, problem=None, text="a word", change=None):
        self.problem, self.text, self.change = problem, text, change

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        if index == BAD and self.problem is not None:
            raise self.problem
        record = {"captions": (self.text if index == BAD else f"word {index}",)}
        return record if self.change is None else self.change(index, record)

    def texts(self, index, column):
        return as_texts(self[index][column], column, f"unsound, record {index}")


class Picky:
    """A tokenizer that raises for one text."""

    def __init__(self, problem):
        self.inner = wordpiece_tokenizer(learn_wordpiece(["a word 0 1 2 3"], 60))
        self.problem = problem

    def encode(self, texts, length, titles=()):
        if any("poison" in text for text in texts):
            raise self.problem
        return self.inner.encode(texts, length, titles)


TOKENIZER = Picky(ValueError("never")).inner
SPEC = text_reader("captions", length=6, tokenizer=TOKENIZER)


def picky(problem):
    return text_reader("captions", length=6, tokenizer=Picky(problem))


def read(source, spec=SPEC, **keys):
    records = RecordSpec({"text": spec}, **keys)
    return train_batch(source, records, Order(COUNT, 0), COUNT, np.arange(COUNT), 0)


CASES = [(Unsound(problem), SPEC, problem) for problem in PROBLEMS]
CASES += [
    (Unsound(text="poison"), picky(problem), problem)
    for problem in (RuntimeError("odd"), PanicException("odd"), TypeError("odd"))
]


@pytest.mark.parametrize(("source", "spec", "problem"), CASES)
def test_any_exception_damages_its_record_and_moves_no_other_draw(source, spec, problem):
    batch, clean = read(source, spec), read(Unsound())
    ((record, place, why),) = batch["damaged"]
    assert (record, place) == (BAD, "unsound, record 5")
    assert type(problem).__name__ in why
    kept = np.array([index != BAD for index in Order(COUNT, 0).ids(0, COUNT)])
    for name in ("ids", "mask"):
        np.testing.assert_array_equal(batch["text"][name][kept], clean["text"][name][kept])


@pytest.mark.parametrize("problem", [RuntimeError("odd"), PanicException("odd")])
def test_evaluation_counts_a_text_that_the_tokenizer_rejects(problem):
    fields = {"text": picky(problem)}
    lost = []

    class Counted:
        def watch(self, batches):
            for batch in batches:
                lost.extend(batch.pop("damaged", ()))
                yield batch

    reading = Reading(threads=0, damage=Counted())
    source = Unsound(text="poison")
    (batch,) = eval_batches(source, fields, field="text", batch_size=COUNT, reading=reading)
    assert [record for record, _, _ in lost] == [BAD]
    assert batch["valid"].tolist() == [index != BAD for index in range(COUNT)]


def test_record_without_a_column_of_the_others_is_damaged():
    batch = read(Unsound(change=lambda index, x: {"other": 1} if index == BAD else x))
    ((record, _, why),) = batch["damaged"]
    assert record == BAD
    assert "no column 'captions'; they have other" in why


def raise_at(first, error):
    """Returns a change of records that raises for the first ones."""

    def change(index, record):
        if index < first:
            raise error
        return {"other": "word"}

    return change


@pytest.mark.parametrize("first", [0, 1])
def test_try_record_rejects_a_column_that_no_record_has(first):
    source = Unsound(change=raise_at(first, OSError("first")))
    with pytest.raises(UserError, match="no column 'captions'") as caught:
        try_record(source, {"text": SPEC})
    assert not isinstance(caught.value, Damaged)


@pytest.mark.parametrize("problem", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupts_and_exits_pass_through(problem):
    with pytest.raises(problem), record_at("here"):
        raise problem


def test_watchdog_knows_the_record_that_is_read():
    seen = []

    def watch(index, record):
        seen.extend(note.place for note in notes.current())
        return record

    source = Unsound(change=watch)
    train_batch_of(source, {"text": SPEC}, size=2, reading=Reading(threads=0))
    assert seen == [f"unsound, record {index}" for index in Order(COUNT, 0).ids(0, 2)]
    assert notes.current() == []


@pytest.mark.parametrize("number", [238, 12364])  # AVIF and EXIF bytes that broke Pillow
def test_odd_avif_and_exif_bytes_damage_at_most_their_record(number):
    _, data = cases.case(0, number)

    def image(index, record):
        return {"image": Encoded(data) if index == BAD else np.zeros((9, 9, 3), np.uint8)}

    batch = read(Unsound(change=image), image_reader("image", size=8))
    assert all(record == BAD for record, _, _ in batch.get("damaged", ()))


def test_negatives_that_the_tokenizer_rejects_damage_their_record():
    source = Unsound(change=lambda n, x: x | {"hard": ["poison" if n == BAD else "fine"]})
    negatives = NegativeSampling("text", "hard", 1)
    batch = read(source, picky(RuntimeError("odd")), negatives=negatives)
    assert [record for record, _, _ in batch["damaged"]] == [BAD]
