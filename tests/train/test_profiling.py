"""Traces of training steps, and the guard against copies from the host."""

import gzip
import json
from pathlib import Path
from typing import Any

import jax
import pytest

from big_retrieval.config import Profile, recipe
from big_retrieval.config.checks import check
from big_retrieval.errors import UserError
from big_retrieval.runtime.extras import Extras
from big_retrieval.train.loop import train
from big_retrieval.train.profiling import Tracer
from big_retrieval.train.run import TrainingRun
from tests.helpers import tiny
from tests.train.runs import ONE


def window(first: int, last: int = 0) -> Any:
    return recipe.entry(Profile(first=first, last=last))


@pytest.mark.slow
def test_window_is_traced_once(tmp_path: Path, said: list[str]) -> None:
    keys: dict[str, Any] = {"profile": window(2, 3), "report": False, "total_steps": 6}
    train(tiny(**keys, stop_after=4), tmp_path, ONE)
    [trace] = tmp_path.glob("profile/plugins/profile/*")
    assert len(list(trace.glob("*.xplane.pb"))) == 1
    events = json.loads(gzip.decompress((trace / "perfetto_trace.json.gz").read_bytes()))
    steps = [event for event in events["traceEvents"] if event.get("name") == "train"]
    assert [int(event["args"]["step_num"]) for event in steps] == [2, 3]
    assert "tracing steps 2 to 3 ..." in said
    assert len([line for line in said if line.startswith(f"trace in {trace}: ")]) == 1
    train(tiny(**keys), tmp_path, ONE)
    assert [*tmp_path.glob("profile/plugins/profile/*")] == [trace]
    assert said.count("tracing steps 2 to 3 ...") == 1


def test_check_rejects_an_impossible_window() -> None:
    check(tiny(profile=window(3)))
    for first, last in ((0, 4), (5, 4)):
        with pytest.raises(UserError, match=rf"config\.profile\.first {first} is not a step"):
            check(tiny(profile=window(first, last)))


def test_window_after_the_end_of_the_run_gives_a_warning(tmp_path: Path, said: list[str]) -> None:
    for first in (0, 3, 4):
        Tracer(Profile(first=first), tmp_path, Extras(), 3)
    assert said == [
        "warning: no step is traced: config.profile.first is 4, and the run has 3 steps"
    ]


def test_failing_trace_gives_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    def full(*args: Any, **keys: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jax.profiler, "start_trace", full)
    tracer = Tracer(Profile(first=1), tmp_path, Extras(), 3)
    for step in range(1, 4):
        tracer.before(step)
        tracer.after(step, None)
    tracer.close()
    assert said == [
        "warning: the profile is not written (No space left on device); the run continues"
    ]


@pytest.mark.slow
def test_batch_on_the_host_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = TrainingRun.to_mesh
    monkeypatch.setattr(TrainingRun, "to_mesh", lambda *args: jax.device_get(given(*args)))
    with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
        train(tiny(report=False, total_steps=2), tmp_path / "guarded", ONE)
    monkeypatch.setattr(jax, "transfer_guard", jax.transfer_guard_device_to_device)
    assert train(tiny(report=False, total_steps=2), tmp_path / "unguarded", ONE)["steps"] == 2
