"""jax's trace of some steps, for TensorBoard's profiler and for Perfetto."""

import logging
from pathlib import Path
from typing import Any

import jax

from big_retrieval.config import Profile
from big_retrieval.runtime.extras import Extras

USUAL = 5  # steps that are traced by default
log = logging.getLogger(__name__)


class Tracer:
    """Traces the steps that `config.profile` names, on the first process.

    A resumed run traces the remaining ones. Errors become one warning.
    """

    def __init__(self, config: Profile, workdir: Path, extras: Extras, total: int) -> None:
        """Traces nothing yet; warns if the window begins after the last step of the run.

        Args:
          total: steps of the run.
        """
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
        """Begins with the first step of the window that this process runs."""
        if self._open or step not in self._window:
            return
        with self._extras("the profile"):
            jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
            self._open = True
            log.info(f"tracing steps {step} to {self._window[-1]} ...")

    def after(self, step: int, out: Any) -> None:
        """Ends after the last step of the window, when its results are there."""
        if self._open and step >= self._window[-1]:
            jax.block_until_ready(out)
            self.close()

    def close(self) -> None:
        """Writes the trace, also of a run that ends within the window."""
        if not self._open:
            return
        self._open = False
        with self._extras("the profile"):
            jax.profiler.stop_trace()
            found = max(self._folder.glob("plugins/profile/*"), default=self._folder)
            log.info(
                f"trace in {found}: tensorboard --logdir={self._folder} (with the package xprof), "
                "or perfetto_trace.json.gz at ui.perfetto.dev"
            )
