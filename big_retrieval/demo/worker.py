"""One thread that answers jobs in order, those of one kind several at a time.

Models encode several queries in little more time than one, and what runs on the device is not safe
in threads. The queue is bounded, so that under a flood of requests memory stays as it is.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any


class Busy(Exception):
    """Too many jobs wait already."""


class Worker:
    """Answers jobs in a thread.

    Args:
      run: answers jobs of one key, at least one: a result for each, or an exception that is raised
        for this job alone.
      bound: jobs that wait, at most.
      batch: jobs of one key that are answered at a time, at most.
      name: of the thread.
    """

    def __init__(
        self,
        run: Callable[[Any, Sequence[Any]], Sequence[Any]],
        *,
        bound: int,
        batch: int = 1,
        name: str = "worker",
    ):
        self._run, self._bound, self._batch = run, bound, batch
        self._jobs: deque[tuple[Hashable, Any, Future]] = deque()
        self._ready = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs that wait."""
        return len(self._jobs)

    def submit(self, key: Hashable, item: Any) -> Future:
        """Appends a job.

        Args:
          key: jobs of the same key may be answered together.
          item: what `run` gets.

        Returns:
          A future of the result, which may be cancelled while the job waits.

        Raises:
          Busy: as many jobs wait as may.
        """
        future: Future = Future()
        with self._ready:
            if self._closed or len(self._jobs) >= self._bound:
                raise Busy
            self._jobs.append((key, item, future))
            self._ready.notify()
        return future

    def close(self) -> None:
        """Ends the thread after the job that runs; jobs that wait are cancelled."""
        with self._ready:
            self._closed = True
            for *_, future in self._jobs:
                future.cancel()
            self._jobs.clear()
            self._ready.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._jobs or self._closed)
                if self._closed:
                    return
                key, some = self._take()
            jobs = [(item, each) for item, each in some if each.set_running_or_notify_cancel()]
            if jobs:
                _answer(self._run, key, jobs)

    def _take(self) -> tuple[Hashable, list[tuple[Any, Future]]]:
        """Takes the first job, and the next ones of its key."""
        key, left, taken = self._jobs[0][0], deque(), []
        for job in self._jobs:
            same = job[0] == key and len(taken) < self._batch
            taken.append(job[1:]) if same else left.append(job)
        self._jobs = left
        return key, taken


def _answer(run: Callable[..., Sequence[Any]], key: Hashable, jobs: Sequence[Any]) -> None:
    """Runs jobs and gives each its result, or what went wrong."""
    try:
        results = run(key, [item for item, _ in jobs])
    except Exception as problem:
        results = [problem] * len(jobs)
    for (_, future), result in zip(jobs, results, strict=True):
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
