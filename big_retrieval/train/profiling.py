"""Traces of training steps, for TensorBoard's profiler and for Perfetto."""

import logging
from pathlib import Path
from typing import Any

import jax

from big_retrieval.config import Profile
from big_retrieval.runtime.extras import Extras

USUAL = 5  # steps that are traced by default
log = logging.getLogger(__name__)


class Tracer:
    """Traces the steps of `config.profile`, on the first process.

    A resumed run traces the remaining steps. Errors become one warning.
    """

    def __init__(self, config: Profile, workdir: Path, extras: Extras, total: int) -> None:
        """Warns if the first traced step comes after the run's last step, `total`."""
        if config.first > total:
            log.warning(
                f"no step is traced: config.profile.first is {config.first}, and the run has "
                f"{total:,} steps"
            )
        enabled = config.first > 0 and jax.process_index() == 0
        last = (config.last or config.first + USUAL - 1) if enabled else 0
        self._window = range(config.first, last + 1)
        self._folder, self._extras = workdir / "profile", extras
        self._open = False

    def before(self, step: int) -> None:
        """Starts the trace at the first step of the window."""
        if self._open or step not in self._window:
            return
        with self._extras("the profile"):
            jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
            self._open = True
            log.info(f"tracing steps {step} to {self._window[-1]} ...")

    def after(self, step: int, out: Any) -> None:
        """Ends the trace after the last step of the window, whose output is `out`."""
        if self._open and step >= self._window[-1]:
            jax.block_until_ready(out)
            self.close()

    def close(self) -> None:
        """Writes the trace, also if the run ends within the window."""
        if not self._open:
            return
        self._open = False
        with self._extras("the profile"):
            jax.profiler.stop_trace()
            trace = max(self._folder.glob("plugins/profile/*"), default=self._folder)
            log.info(
                f"trace in {trace}: tensorboard --logdir={self._folder} (with the package xprof), "
                "or perfetto_trace.json.gz at ui.perfetto.dev"
            )
