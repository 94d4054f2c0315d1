"""The queue: order, batches of one kind, a bound, and errors of one job."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from big_retrieval.demo.worker import Busy, Worker


def test_jobs_of_one_key_are_answered_together_and_others_in_order() -> None:
    free, seen = threading.Event(), []

    def run(key: Any, items: Sequence[int]) -> list[int]:
        free.wait(10)
        seen.append((key, list(items)))
        return [10 * item for item in items]

    worker = Worker(run, bound=20, batch=3)
    first = worker.submit("a", 0)
    while worker.waiting:  # the thread has taken it, and waits
        pass
    later = [worker.submit(*job) for job in [("a", 1), ("b", 2), ("a", 3), ("a", 4), ("a", 5)]]
    free.set()
    assert [first.result(10), *(each.result(10) for each in later)] == [0, 10, 20, 30, 40, 50]
    assert seen == [("a", [0]), ("a", [1, 3, 4]), ("b", [2]), ("a", [5])]
    worker.close()


def test_a_full_queue_refuses_and_a_cancelled_job_is_not_run() -> None:
    free, seen = threading.Event(), []

    def run(key: Any, items: Sequence[int]) -> Sequence[int]:
        free.wait(10)
        seen.extend(items)
        return items

    worker = Worker(run, bound=2)
    first = worker.submit("a", 0)
    while worker.waiting:
        pass
    second, third = worker.submit("a", 1), worker.submit("a", 2)
    with pytest.raises(Busy):
        worker.submit("a", 3)
    assert second.cancel()
    free.set()
    assert (first.result(10), third.result(10)) == (0, 2)
    assert seen == [0, 2]
    worker.close()
    with pytest.raises(Busy):
        worker.submit("a", 4)


def test_an_error_of_one_job_is_its_own() -> None:
    def run(key: Any, items: Sequence[int]) -> list[Any]:
        if key == "bad":
            raise RuntimeError("all")
        return [ValueError("one") if item < 0 else item for item in items]

    worker = Worker(run, bound=9, batch=9)
    good, wrong, bad = (worker.submit("a", 1), worker.submit("a", -1), worker.submit("bad", 1))
    assert good.result(10) == 1
    with pytest.raises(ValueError, match="one"):
        wrong.result(10)
    with pytest.raises(RuntimeError, match="all"):
        bad.result(10)
    worker.close()
