"""Whatever goes wrong while one record is read, decoded or tokenised is that record's damage."""

import struct

import numpy as np
import pytest

from big_retrieval.data.batches import RecordSpec, train_batch, try_record
from big_retrieval.data.damage import record_at
from big_retrieval.data.images.decoding import Encoded
from big_retrieval.data.negatives import NegativeSampling
from big_retrieval.data.order import Order
from big_retrieval.data.pipeline import Reading, eval_batches, train_batches
from big_retrieval.data.sources import RecordSource, as_texts
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.errors import Damaged, UserError
from big_retrieval.runtime import activity as notes
from tests.fuzz import cases
from tests.readers import image_reader, text_reader

COUNT, BAD = 12, 5


class PanicException(BaseException):
    """What Rust code raises where it panics; it is no `Exception`."""


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
    """Records with a text each, one of which cannot be read."""

    name = "unsound"

    def __init__(self, problem=None, text="a word"):
        self.problem, self.text = problem, text

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        if index == BAD and self.problem is not None:
            raise self.problem
        return {"captions": (self.text if index == BAD else f"word {index}",)}

    def texts(self, index, column):
        return as_texts(self[index][column], column, f"unsound, record {index}")


class Picky:
    """A tokenizer that one text is too much for."""

    def __init__(self, problem):
        self.inner = wordpiece_tokenizer(learn_wordpiece(["a word 0 1 2 3"], 60))
        self.problem = problem

    def encode(self, texts, length, titles=()):
        if any("poison" in text for text in texts):
            raise self.problem
        return self.inner.encode(texts, length, titles)


SPEC = text_reader("captions", length=6, tokenizer=Picky(ValueError("never")).inner)


def read(source, spec=SPEC):
    order = Order(COUNT, 0)
    batch = train_batch(source, RecordSpec({"text": spec}), order, COUNT, np.arange(COUNT), 0)
    return batch, order


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
def test_any_exception_of_a_record_is_its_damage_and_nothing_else_moves(problem):
    batch, order = read(Unsound(problem))
    ((record, place, why),) = batch["damaged"]
    assert (record, place) == (BAD, "unsound, record 5")
    assert type(problem).__name__ in why
    clean, _ = read(Unsound())
    kept = np.array([index != BAD for index in order.ids(0, COUNT)])
    for name in ("ids", "mask"):
        np.testing.assert_array_equal(batch["text"][name][kept], clean["text"][name][kept])


@pytest.mark.parametrize("problem", [RuntimeError("odd"), PanicException("odd"), TypeError("odd")])
def test_a_text_that_no_tokenizer_bears_is_the_damage_of_its_record(problem):
    spec = text_reader("captions", length=6, tokenizer=Picky(problem))
    batch, order = read(Unsound(text="poison"), spec)
    ((record, _, why),) = batch["damaged"]
    assert record == BAD
    assert f"{type(problem).__name__}: odd" in why
    clean, _ = read(Unsound())
    kept = np.array([index != BAD for index in order.ids(0, COUNT)])
    np.testing.assert_array_equal(batch["text"]["ids"][kept], clean["text"]["ids"][kept])


@pytest.mark.parametrize("problem", [RuntimeError("odd"), PanicException("odd")])
def test_evaluation_counts_a_text_that_no_tokenizer_bears(problem):
    fields = {"text": text_reader("captions", length=6, tokenizer=Picky(problem))}
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


def test_a_record_without_a_column_that_the_others_have_is_damaged():
    class Ragged(Unsound):
        def __getitem__(self, index):
            return super().__getitem__(index) if index != BAD else {"other": 1}

    batch, _ = read(Ragged())
    ((record, _, why),) = batch["damaged"]
    assert record == BAD
    assert "no column 'captions'; they have other" in why


def test_a_column_that_no_record_has_is_a_mistake_in_the_configuration():
    spec = text_reader("title", length=6, tokenizer=SPEC.tokenizer)
    with pytest.raises(UserError, match=r"records have no column 'title'") as problem:
        try_record(Unsound(), {"text": spec})
    assert not isinstance(problem.value, Damaged)


def test_a_source_of_which_nothing_can_be_read_ends_the_start_with_the_exceptions_type():
    class Broken(Unsound):
        def __getitem__(self, index):
            raise KeyError("bug")

    with pytest.raises(UserError, match=r"no usable record among its first 12.*KeyError: 'bug'"):
        try_record(Broken(), {"text": SPEC})


@pytest.mark.parametrize("problem", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupts_and_exits_are_no_damage(problem):
    with pytest.raises(problem), record_at("here"):
        raise problem


def test_the_record_that_is_read_is_noted_for_the_watchdog():
    seen = []

    class Watched(Unsound):
        def __getitem__(self, index):
            seen.extend(note.place for note in notes.current())
            return super().__getitem__(index)

    batches = train_batches(
        Watched(), fields={"text": SPEC}, order=Order(COUNT, 0), batch_size=2, rows=np.arange(2),
        start_batch=0, stop_batch=1, reading=Reading(threads=0),
    )  # fmt: skip
    next(batches)
    assert seen == [f"unsound, record {index}" for index in Order(COUNT, 0).ids(0, 2)]
    assert notes.current() == []


@pytest.mark.parametrize("number", [238, 12364])  # AVIF and EXIF bytes that Pillow stumbles over
def test_odd_avif_and_exif_bytes_are_damage_or_an_upright_image(number):
    _, data = cases.case(0, number)

    class Images(Unsound):
        def __getitem__(self, index):
            image = Encoded(data) if index == BAD else np.zeros((9, 9, 3), np.uint8)
            return {"image": image}

    batch, _ = read(Images(), image_reader("image", size=8))
    assert all(record == BAD for record, _, _ in batch.get("damaged", ()))


def test_negatives_that_no_tokenizer_bears_are_the_damage_of_their_record():
    class Hard(Unsound):
        def __getitem__(self, index):
            return super().__getitem__(index) | {"hard": ["poison" if index == BAD else "fine"]}

    spec = text_reader("captions", length=6, tokenizer=Picky(RuntimeError("odd")))
    records = RecordSpec({"text": spec}, negatives=NegativeSampling("text", "hard", 1))
    batch = train_batch(Hard(), records, Order(COUNT, 0), COUNT, np.arange(COUNT), 0)
    assert [record for record, _, _ in batch["damaged"]] == [BAD]


def test_a_mistake_in_the_configuration_is_told_before_a_damaged_first_record():
    class Lacking(Unsound):
        def __getitem__(self, index):
            if index == 0:
                raise OSError("first")
            return {"other": "word"}

    with pytest.raises(UserError, match="captions") as caught:
        try_record(Lacking(), {"text": SPEC})
    assert not isinstance(caught.value, Damaged)
