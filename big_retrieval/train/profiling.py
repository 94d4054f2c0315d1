"""jax's trace of some steps, for TensorBoard's profiler and for Perfetto."""

import contextlib
import logging
from pathlib import Path
from typing import Any

import jax

from big_retrieval.config import Profile
from big_retrieval.runtime.extras import Extras

USUAL = 5  # steps that are traced unless the configuration says to which one
log = logging.getLogger(__name__)


class Tracer:
    """Traces the steps that `config.profile` names, on the first process.

    A resumed run traces those of them that are still to come. What goes wrong is a warning.
    """

    def __init__(self, config: Profile, workdir: Path, extras: Extras, total: int) -> None:
        """Nothing is traced yet; warns where nothing will be.

        Args:
          config: which steps.
          workdir: the run folder.
          extras: the run's, for warnings.
          total: steps of the whole run.
        """
        if config.first > total:
            log.warning(
                f"no step is traced: config.profile.first is {config.first}, and the run has "
                f"{total:,} steps"
            )
        wanted = config.first > 0 and jax.process_index() == 0
        self._first = config.first
        self._last = (config.last or config.first + USUAL - 1) if wanted else 0
        self._folder, self._extras = workdir / "profile", extras
        self._open = self._failed = False
        self._mark = contextlib.ExitStack()  # of the step that runs

    def before(self, step: int) -> None:
        """Begins where a step is the first of the window that this process runs."""
        if self._failed or not self._first <= step <= self._last:
            return
        self._failed = True  # until it has begun
        with self._extras("the profile"):
            if not self._open:
                jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
                self._open = True
                log.info(f"tracing steps {step} to {self._last} ...")
            self._mark.enter_context(jax.profiler.StepTraceAnnotation("train", step_num=step))
            self._failed = False

    def after(self, step: int, out: Any) -> None:
        """Ends behind the last step of the window, when its results are there."""
        self._mark.close()
        if self._open and step >= self._last:
            jax.block_until_ready(out)
            self.close()

    def close(self) -> None:
        """Writes the trace, also of a run that ends within the window."""
        self._mark.close()
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
