"""Batches: equal for all numbers of threads, processes and rows; flips respect captions."""

import gc
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from big_retrieval.data.batches import try_record
from big_retrieval.data.eval_batches import eval_items
from big_retrieval.data.order import Order
from big_retrieval.data.pipeline import Reading, Timed, eval_batches, train_batches
from big_retrieval.data.sources import RecordSource
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.errors import UserError
from tests.readers import changed, image_reader, text_reader

SOURCE = SceneRecords("train", count=50, size=20)
TOKENIZER = wordpiece_tokenizer(learn_wordpiece(SOURCE.captions(), 300))
IMAGE = image_reader("image", size=16, crop_scale=(0.5, 1.0), flip=0.5)
TEXT = text_reader("captions", length=18, tokenizer=TOKENIZER)
FIELDS = {"image": IMAGE, "text": TEXT}


class Tagged(RecordSource):
    """Images with a dark left half; every other record has captions with an unsafe word."""

    name = "tagged"

    def __len__(self):
        return 40

    def __getitem__(self, index):
        image = np.full((8, 8, 3), 200, np.uint8)
        image[:, :4] = 0
        return {"image": image, "captions": self.texts(index, "captions"), "number": index}

    def texts(self, index, column):
        return ("Left of it", "RIGHT!") if index % 2 else ("leftover", "bright", "above")

    def captions(self):
        return (text for index in range(40) for text in self.texts(index, "captions"))


class Broken(Tagged):
    def __getitem__(self, index):
        raise ZeroDivisionError(f"record {index}")


def run(source=SOURCE, fields=FIELDS, size=16, rows=None, seed=3, start=1, stop=6, **reading):
    return list(
        train_batches(
            source,
            fields=fields,
            order=Order(len(source), seed),
            batch_size=size,
            rows=np.arange(size) if rows is None else rows,
            start_batch=start,
            stop_batch=stop,
            reading=Reading(**reading),
        )
    )


def leaves(batch):
    found = {}
    for name, value in batch.items():
        for key, array in value.items() if isinstance(value, dict) else [("", value)]:
            found[name, key] = array
    return found


def assert_same(first, second):
    assert len(first) == len(second) > 0
    for a, b in zip(map(leaves, first), map(leaves, second), strict=True):
        assert a.keys() == b.keys()
        for name, array in a.items():
            assert array.dtype == b[name].dtype
            np.testing.assert_array_equal(array, b[name], err_msg=str(name))


def test_batches_have_the_records_of_their_positions():
    batches = run(start=0, stop=7)
    types = {name: (array.dtype.name, array.shape) for name, array in leaves(batches[0]).items()}
    assert types == {
        ("image", "pixels"): ("uint8", (16, 16, 16, 3)),
        ("text", "ids"): ("int32", (16, 18)),
        ("text", "mask"): ("bool", (16, 18)),
        ("record", ""): ("int64", (16,)),
        ("valid", ""): ("bool", (16,)),
    }
    records = np.concatenate([batch["record"] for batch in batches])
    assert all(batch["valid"].all() for batch in batches)
    assert records.tolist() == Order(50, 3).ids(0, 7 * 16)
    assert sorted(records[:50]) == sorted(records[50:100]) == list(range(50))


def test_threads_workers_and_the_order_of_fields_change_nothing():
    expected = run(threads=0)
    for threads in (1, 2, 5):
        assert_same(expected, run(threads=threads, prefetch=1 + threads % 3))
    assert_same(expected, run(fields={"text": TEXT, "image": IMAGE}))
    batches = run(workers=2, threads=1)
    assert_same(expected, batches)
    del batches  # frees the shared memory of the last batch before the process ends
    assert not [x for x in gc.get_objects() if type(x).__name__ == "SharedMemoryArray"]


def test_any_split_of_the_rows_gives_the_same_rows():
    whole = run()
    halves = [run(rows=np.arange(8)), run(rows=np.arange(8, 16))]
    mixed = run(rows=np.array([13, 2, 7]))
    for place, batch in enumerate(map(leaves, whole)):
        first, second = (leaves(half[place]) for half in halves)
        for name, array in batch.items():
            np.testing.assert_array_equal(np.concatenate([first[name], second[name]]), array)
            np.testing.assert_array_equal(leaves(mixed[place])[name], array[[13, 2, 7]])


def test_pipeline_starts_at_any_batch():
    assert_same(run(start=1, stop=6)[3:], run(start=4, stop=6))
    assert run(start=4, stop=4) == []


def test_epochs_and_seeds_have_different_draws():
    first, second = run(size=50, start=0, stop=2, threads=0)
    other = run(size=50, start=0, stop=1, seed=4)[0]
    for batch in (second, other):
        same = 0
        for record in range(50):
            a, b = (np.flatnonzero(x["record"] == record)[0] for x in (first, batch))
            same += np.array_equal(first["image"]["pixels"][a], batch["image"]["pixels"][b])
        assert same < 5


def test_pipeline_draws_all_captions_of_a_record():
    tokenizer = wordpiece_tokenizer(learn_wordpiece(Tagged().captions(), 100))
    fields = {"text": replace(TEXT, tokenizer=tokenizer)}
    seen = {
        (int(record), tuple(ids))
        for batch in run(Tagged(), fields, size=40, start=0, stop=15)
        for record, ids in zip(batch["record"], batch["text"]["ids"].tolist(), strict=True)
    }
    assert len(seen) == 20 * 2 + 20 * 3


def test_unsafe_words_prevent_the_flip():
    fields = {"image": changed(IMAGE, size=8, crop_scale=(1.0, 1.0)), "text": TEXT}
    flips = {True: 0, False: 0}
    for batch in run(Tagged(), fields, size=40, start=0, stop=10):
        for record, image in zip(batch["record"], batch["image"]["pixels"], strict=True):
            flips[bool(record % 2)] += image[0, 0, 0] != 0
    assert flips[True] == 0
    assert 60 < flips[False] < 140  # of 200
    free = {**fields, "image": changed(fields["image"], flip=1.0, flip_unsafe_words=())}
    batch = run(Tagged(), free, size=40, start=0, stop=1)[0]
    assert (batch["image"]["pixels"][:, 0, 0, 0] == 200).all()


def test_image_without_crop_and_flip_is_unchanged():
    fields = {"image": image_reader("image", size=20)}
    batch = run(fields=fields, stop=2)[0]
    for record, image in zip(batch["record"], batch["image"]["pixels"], strict=True):
        np.testing.assert_array_equal(image, SOURCE[int(record)]["image"])


@pytest.mark.parametrize(
    "reading",
    [{"threads": 0}, {"threads": 2}, pytest.param({"workers": 1}, id="worker process")],
)
def test_errors_of_the_source_are_damage_with_their_type(reading):
    with pytest.raises(UserError, match=r"100 records in a row .* \(ZeroDivisionError: record"):
        run(Broken(), **reading)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (changed(TEXT, column="title"), "no column 'title'"),
        (changed(TEXT, column="image"), "'image' is array"),
        (changed(IMAGE, column="captions"), "the image is tuple"),
        (changed(TEXT, length=1), "length 1"),
    ],
)
def test_fields_that_do_not_fit_are_rejected(field, message):
    with pytest.raises(UserError, match=message):
        run(fields={"field": field}, stop=2)
    with pytest.raises(UserError, match=message):
        try_record(SOURCE, {"field": field})
    try_record(SOURCE, FIELDS)


def test_try_record_rejects_arrays_of_other_shapes():
    class Wide(type(TEXT)):
        def stack(self, values):
            return {**super().stack(values), "mask": np.ones((len(values), 3), np.int32)}

    with pytest.raises(UserError, match=r"config\.fields\.text: .*'mask': 'int32 \[3\]'.*'bool"):
        try_record(SOURCE, {"text": Wide(TEXT.field, TEXT.tokenizer)})


def test_evaluation_reads_every_image_once():
    batches = list(eval_batches(SOURCE, FIELDS, field="image", batch_size=16))
    assert [batch["valid"].sum() for batch in batches] == [16, 16, 16, 2]
    assert all(batch["image"]["pixels"].shape == (16, 16, 16, 3) for batch in batches)
    records = np.concatenate([batch["record"] for batch in batches])
    assert records.tolist() == [*range(50), *[-1] * 14]
    again = list(eval_batches(SOURCE, FIELDS, field="image", batch_size=16, reading=Reading(0)))
    assert_same(batches, again)


def test_evaluation_reads_every_text_once():
    pairs = [(i, text) for i in range(40) for text in Tagged().texts(i, "captions")]
    batches = eval_batches(Tagged(), {"text": TEXT}, field="text", batch_size=32)
    parts = [leaves(batch) for batch in batches]
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    valid = whole["valid", ""]
    assert valid.tolist() == [True] * 100 + [False] * 28
    assert whole["record", ""][valid].tolist() == [i for i, _ in pairs]
    texts = [text for _, text in pairs]
    np.testing.assert_array_equal(whole["text", "ids"][valid], TOKENIZER.encode(texts, 18)[0])
    # Padded rows have a start and an end token, so that nothing divides by zero.
    assert (whole["text", "mask"][~valid].sum(1) == 2).all()
    assert len(eval_items(Tagged(), TEXT)) == 100


def test_evaluation_loads_single_rows():
    whole = list(eval_batches(SOURCE, FIELDS, field="text", batch_size=12))
    part = list(eval_batches(SOURCE, FIELDS, field="text", batch_size=12, rows=np.array([5, 11])))
    assert len(part) == len(whole) == 21
    for a, b in zip(whole, part, strict=True):
        for name, array in leaves(a).items():
            np.testing.assert_array_equal(array[[5, 11]], leaves(b)[name])


def test_timed_measures_only_waiting():
    def slow():
        for number in range(3):
            time.sleep(0.02)
            yield {"number": number}

    timed = Timed(slow())
    assert [next(timed)["number"], next(timed)["number"]] == [0, 1]
    waited = timed.lap()
    assert waited == timed.seconds > 0
    time.sleep(0.02)
    assert timed.lap() == 0
    assert [batch["number"] for batch in timed] == [2]
    assert timed.seconds > waited
    timed.close()


def test_close_stops_a_run():
    order, rows = Order(50, 0), np.arange(4)
    keys = {"order": order, "batch_size": 4, "rows": rows, "start_batch": 0, "stop_batch": 10**9}
    batches = Timed(train_batches(SOURCE, fields=FIELDS, **keys))
    next(batches)
    batches.close()
    with pytest.raises(StopIteration):
        next(batches)


KILLED = """
import multiprocessing, os, signal
from tests.data import test_pipeline as here

if __name__ == "__main__":
    batches = here.train_batches(
        here.SOURCE, fields=here.FIELDS, order=here.Order(50, 0), batch_size=4,
        rows=here.np.arange(4), start_batch=0, stop_batch=10**6, reading=here.Reading(workers=1),
    )
    next(batches)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def running(number):
    """Returns True if a process exists and is not a zombie."""
    try:
        return open(f"/proc/{number}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_workers_end_with_a_killed_run(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    env = {**os.environ, "PYTHONPATH": os.getcwd(), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, script], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    (child,) = map(int, done.stdout.split())
    for _ in range(600):
        if not running(child):
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the worker process is still there")
