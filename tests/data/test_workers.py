"""Killed data workers are replaced without changing batches, or end the run with an error."""

import contextlib
import multiprocessing
import os
import pathlib
import signal

import numpy as np
import pytest

from big_retrieval.data import pipeline
from big_retrieval.data.order import Order
from big_retrieval.data.pipeline import Reading, train_batches
from big_retrieval.data.sources import RecordSource
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.errors import UserError
from big_retrieval.runtime import activity as notes
from tests.readers import text_reader

TOKENIZER = wordpiece_tokenizer(learn_wordpiece(["word 0 1 2 3 4 5 6 7 8 9"], 60))
FIELDS = {"text": text_reader("captions", length=6, tokenizer=TOKENIZER)}
KILLED = "Worker process was terminated unexpectedly with exit code -9. Search the logs above"


class Words(RecordSource):
    """Fifty texts; reading the text of record `deadly` kills the process that reads it."""

    name = "words"

    def __init__(self, deadly=-1):
        self.deadly = deadly

    def __len__(self):
        return 50

    def __getitem__(self, index):
        if index == self.deadly and multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"captions": (f"word {index}",)}


def batches(source, reading, stop=10):
    return train_batches(
        source, fields=FIELDS, order=Order(50, 0), batch_size=4, rows=np.arange(4),
        start_batch=0, stop_batch=stop, reading=reading,
    )  # fmt: skip


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a["record"], b["record"])
        np.testing.assert_array_equal(a["text"]["ids"], b["text"]["ids"])


class Mortal:
    """Replaces grain's iterator; raises its error after `lifetime` batches."""

    def __init__(self, made, folder, lifetime):
        self.made, self.folder, self.left, self.closed = made, folder, lifetime, False

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            if self.folder is not None and self.folder.exists():
                board = notes._Board(self.folder / "12345")
                board.write(1, notes.Note("pairs.jsonl, line 7", 0.0))
            raise RuntimeError(KILLED)
        self.left -= 1
        return next(self.made)

    def close(self):
        self.closed = True


@pytest.fixture
def mortal(monkeypatch):
    """Returns lifetimes of workers, to be filled, and their iterators."""
    real, made, lifetimes = pipeline._ahead, [], []

    def ahead(make, start, stop, reading, folder):
        inner = real(make, start, stop, Reading(threads=0, prefetch=1), folder)
        made.append(Mortal(inner, folder, lifetimes.pop(0) if lifetimes else 10**9))
        return made[-1]

    monkeypatch.setattr(pipeline, "_ahead", ahead)
    return lifetimes, made


def test_killed_worker_is_replaced_without_changing_batches(mortal, capfd):
    lifetimes, made = mortal
    expected = list(batches(Words(), Reading(threads=0)))
    lifetimes += [3, 0, 0, 4]
    assert_same(batches(Words(), Reading(workers=2)), expected)
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 4
    assert "a data worker died (SIGKILL) while it read pairs.jsonl, line 7" in said[0]
    assert said[0].endswith("new workers continue with batch 3")
    assert said[3].endswith("new workers continue with batch 7")
    assert all(each.closed for each in made)
    assert notes._folders == []


def test_workers_that_die_repeatedly_end_the_run(mortal):
    lifetimes, _ = mortal
    lifetimes += [2, 0, 0, 0]
    found = batches(Words(), Reading(workers=2))
    assert len([next(found), next(found)]) == 2
    with pytest.raises(UserError, match=r"line 7, and so did 3 before it"):
        next(found)


@pytest.mark.parametrize("when", ["before the workers start", "while they work"])
def test_killed_worker_is_replaced_without_a_temporary_folder(when, mortal, monkeypatch, capfd):
    @contextlib.contextmanager
    def workers():
        yield None if when.startswith("before") else pathlib.Path("/nowhere")

    monkeypatch.setattr(notes, "workers", workers)
    mortal[0].append(3)
    assert len(list(batches(Words(), Reading(workers=2)))) == 10
    assert "a data worker died (SIGKILL); new workers" in capfd.readouterr().err


def test_threads_need_no_temporary_folder(monkeypatch):
    monkeypatch.setattr(notes, "workers", lambda: pytest.fail("a folder was made"))
    assert len(list(batches(Words(), Reading(threads=0)))) == 10


def test_other_errors_of_grain_pass_through(monkeypatch):
    def ahead(*args):
        raise RuntimeError("something else")

    monkeypatch.setattr(pipeline, "_ahead", ahead)
    with pytest.raises(RuntimeError, match="something else"):
        next(batches(Words(), Reading()))


@pytest.mark.slow
def test_killed_worker_process_changes_no_batch(capfd):
    expected = list(batches(Words(), Reading(threads=0), stop=40))
    found = batches(Words(), Reading(threads=1, workers=2, prefetch=1), stop=40)
    first = [next(found) for _ in range(3)]
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    assert_same([*first, *found], expected)
    assert "a data worker died (SIGKILL)" in capfd.readouterr().err


@pytest.mark.slow
def test_record_that_kills_every_worker_is_named():
    deadly = Order(50, 0).ids(8, 1)[0]
    found = batches(Words(deadly), Reading(threads=1, workers=1, prefetch=1))
    with pytest.raises(UserError, match=rf"while it read words, record {deadly}, and so did 3"):
        list(found)
