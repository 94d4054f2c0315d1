"""Signals: they end the process before the first step, and save and stop after it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.io import manifest
from big_retrieval.train.loop import train
from big_retrieval.train.stop import StopSignal, log_unsaved
from tests.helpers import ROOT, environment, results, tiny

pytestmark = pytest.mark.usefixtures("one_model")

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Ended(Exception):
    """Raised by a signal outside of `StopSignal`."""


@pytest.fixture(autouse=True)
def outside() -> Iterator[Callable[..., None]]:
    """Handlers that raise, so that an uncaught signal ends a test instead of pytest."""

    def end(number: int, frame: Any) -> None:
        raise Ended(number)

    before = {number: signal.signal(number, end) for number in SIGNALS}
    yield end
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_before_the_first_step_is_not_caught(number: signal.Signals) -> None:
    with StopSignal(), pytest.raises(Ended):
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_after_a_step_requests_a_stop(
    number: signal.Signals, outside: Callable[..., None]
) -> None:
    with StopSignal() as stop:
        assert not stop.requested(1)
        os.kill(os.getpid(), number)
        assert stop.requested(2)
        if number == signal.SIGINT:  # a second one interrupts
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        else:
            os.kill(os.getpid(), number)
    assert [signal.getsignal(number) for number in SIGNALS] == [outside, outside]


def test_interrupt_names_the_newest_checkpoint(tmp_path: Path, said: list[str]) -> None:
    for words in ("nothing is saved", "steps after checkpoints/4 are not saved"):
        with pytest.raises(KeyboardInterrupt), log_unsaved(tmp_path):
            raise KeyboardInterrupt
        assert words in said[-1]
        folder = tmp_path / "checkpoints" / "4"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / manifest.MANIFEST).touch()


@pytest.mark.slow
def test_sigterm_while_an_evaluator_runs_saves_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    test = recipe.entry(configs.Retrieval(), data=configs.Scenes(split="test", count=8))
    config = tiny(evals={"test": test}, eval_every=2, checkpoint_every=100)
    evaluated, inner = [], configs.Retrieval.run

    def run(self: configs.Retrieval, *args: Any) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGTERM)
        evaluated.append(inner(self, *args))
        return evaluated[-1]

    with monkeypatch.context() as patched:
        patched.setattr(configs.Retrieval, "run", run)
        assert train(config, tmp_path, jax.devices()[:1]) == {}
    assert len(evaluated) == 1
    assert manifest.complete_steps(tmp_path / "checkpoints") == [3]
    output = capsys.readouterr().out
    assert "stopped after step 3 of 8; to continue, repeat the same command" in output
    train(config, tmp_path, jax.devices()[:1])
    assert results(tmp_path)["resumed_from"] == 3


WAITING = """
import sys, time
from pathlib import Path
import jax
from big_retrieval.train import loop, run
from tests.helpers import tiny

def wait(*_):
    print("waiting", flush=True)
    time.sleep(600)

place = sys.argv[1]
if place == "set_up":
    run.data.make_tokenizer = wait
elif place == "compile":
    run.compile_step = wait
else:
    run.TrainingRun.to_mesh = wait
loop.train(tiny(), Path(sys.argv[2]), jax.devices()[:1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["set_up", "compile", "batch"])
def test_sigterm_before_the_first_step_ends_a_process_at_once(place: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, place, str(tmp_path)],
        cwd=ROOT, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        seen = []
        while "waiting\n" not in seen:
            seen.append(process.stdout.readline())
            assert seen[-1], "".join(seen)
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=30)  # waiting would take 600 s
    finally:
        process.kill()
    assert process.returncode == -signal.SIGTERM, rest
    assert "Traceback" not in rest
    assert not (tmp_path / "checkpoints").exists()
