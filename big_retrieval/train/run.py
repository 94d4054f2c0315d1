"""A training run that is ready to go: its parts, its batches, its checkpoints and its states."""

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval import parallel
from big_retrieval.batch import Batch
from big_retrieval.config import Config, schema
from big_retrieval.data.build import (
    make_labels,
    make_negatives,
)
from big_retrieval.data.damage import Damage
from big_retrieval.data.fields.contents import ContentIds
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.order import Order
from big_retrieval.data.pipeline import Reading, Timed, train_batches
from big_retrieval.data.sources import RecordSource
from big_retrieval.data.text.tokenizers import FixedLengthTokenizer
from big_retrieval.errors import UserError
from big_retrieval.evals import evaluators as evals
from big_retrieval.inference.fingerprint import versions
from big_retrieval.io.manifest import to_json
from big_retrieval.train.build import BuiltModel
from big_retrieval.train.checkpoint import Checkpoints
from big_retrieval.train.logging import keep_old
from big_retrieval.train.progress import TimeLeft
from big_retrieval.train.resume import check_fits
from big_retrieval.train.schedules import title
from big_retrieval.train.start import first_state
from big_retrieval.train.state import TrainState
from big_retrieval.train.step import CompiledSteps, abstract_batch, compile_step
from big_retrieval.train.step_figures import log_step

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingRun:
    """A run, ready to go.

    Attributes:
      workdir: the run folder.
      parts: model, optimiser and step.
      tokenizer: of all text fields.
      source: the training records.
      readers: field name -> how it is read.
      order: from positions to records.
      rows: the rows of each global batch that this process brings.
      evaluators: by metric prefix.
      total_steps: the length.
      reading: by what records are read; counts damaged ones.
      beside: field -> fingerprint of what it reads beside the records.
      contents: which ids rows get by what they hold; None: none.
    """

    workdir: Path
    parts: BuiltModel
    tokenizer: FixedLengthTokenizer
    source: RecordSource
    readers: Mapping[str, FieldReader]
    order: Order
    rows: np.ndarray
    evaluators: Mapping[str, evals.Runnable]
    total_steps: int
    reading: Reading
    beside: Mapping[str, str]
    contents: ContentIds | None = None

    @property
    def damage(self) -> Damage:
        """What was seen of damaged records."""
        assert self.reading.damage is not None
        return self.reading.damage

    @property
    def config(self) -> Config:
        """The configuration."""
        return self.parts.config

    def interval_ends(self, key: str, step: int) -> bool:
        """Whether an interval of the config, in steps or in epochs, ends with a step.

        Args:
          key: such as `eval_every`, which `eval_every_epochs` stands beside.
          step: finished steps, from 1.
        """
        steps, epochs = getattr(self.config, key), getattr(self.config, f"{key}_epochs")
        timeline = self.parts.updates.timeline
        return bool(steps and step % steps == 0) or timeline.ends(step, epochs)

    def due(self, step: int) -> set[str]:
        """The evaluators that run after a step."""
        return evals.due(
            self.config, step, self.total_steps, self.interval_ends("eval_every", step)
        )

    def saves(self, step: int, due: set[str]) -> bool:
        """Whether a checkpoint is written after a step, if nothing stops the run.

        Args:
          step: finished steps.
          due: the evaluators that run after it.
        """
        return (
            step == self.total_steps
            or self.interval_ends("checkpoint_every", step)
            or evals.measures_best(self.config, due)
        )

    def time_left(self, first: int) -> TimeLeft:
        """What tells the time that the steps behind `first` and the pauses between them take."""
        c, timeline = self.config, self.parts.updates.timeline
        steps = {self.total_steps}
        for every in {c.eval_every, c.checkpoint_every, *(e.every for e in c.evals.values())}:
            steps |= set(range(every, self.total_steps + 1, every)) if every else set()
        for epochs in (c.eval_every_epochs, c.checkpoint_every_epochs):
            steps |= set(timeline.all_ends(epochs))
        due = {step: self.due(step) for step in steps}
        pauses = {step: (frozenset(names), self.saves(step, names)) for step, names in due.items()}
        return TimeLeft(self.total_steps, first, pauses)

    def batches(self, first: int, last: int) -> "Batches":
        """The global batches of the steps first + 1 .. last."""
        c = self.config
        arrays = train_batches(
            self.source,
            fields=self.readers,
            order=self.order,
            batch_size=c.batch_size,
            rows=self.rows,
            start_batch=first,
            stop_batch=last,
            labels=make_labels(c),
            negatives=make_negatives(c),
            contents=self.contents,
            reading=self.reading,
        )
        return Batches(arrays, self)

    def digest(self, batch: int) -> str:
        """A fingerprint of the record ids of one batch, counted from 0."""
        return self.order.digest(batch * self.config.batch_size, self.config.batch_size)

    def compile_steps(self, steps: range) -> CompiledSteps:
        """Compiles the training step for this run's shapes, and says how long it took.

        Of several phases, the step of each that is still to come: what does not fit into memory
        then shows now, and no phase begins with a wait.

        Args:
          steps: finished steps before each step that is to be run.
        """
        parts, compiled, figures = self.parts, {}, []
        batch, found = abstract_batch(self.config, parts.mesh, self.contents), parts.updates.spans
        for number, span in enumerate(found):
            if span.stop <= steps.start or span.start >= steps.stop:
                continue
            phase = f" of phase {title(span)}" if len(found) > 1 else ""
            log.info(f"compiling the training step{phase} ...")
            start = time.monotonic()
            compiled[number] = compile_step(parts.steps[number], parts.abstract, batch, parts.mesh)
            log.info(f"compiled in {time.monotonic() - start:.1f} s")
            figures.append(log_step(compiled[number], parts))
        return CompiledSteps(found, compiled, figures)

    def open_checkpoints(self) -> Checkpoints:
        """The checkpoints of the run folder."""
        files = {
            "config.json": to_json(schema.to_plain(self.config)),
            "tokenizer.json": self.tokenizer.to_json().encode(),
        }
        c = self.config
        return Checkpoints(
            self.workdir / "checkpoints",
            files=files,
            logs=[self.workdir / "metrics.jsonl"],
            best_metric=c.best_metric,
            best_mode=c.best_mode,
        )

    def meta(
        self, step: int, metrics: Mapping[str, float] | None, training: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns meta.json of a checkpoint.

        Args:
          step: finished steps.
          metrics: of its evaluators; None if an evaluator failed.
          training: values that were logged at this step; empty if it is not a logged step.
        """
        return {
            "step": step,
            "position": step * self.config.batch_size,
            "records": len(self.source),
            "next_records": self.digest(step),
            "beside": dict(self.beside),
            "evaluated": metrics is not None,
            "metrics": dict(metrics or {}),
            "training": dict(training),
            "total_steps": self.total_steps,
            "vocab_size": self.tokenizer.vocab_size,
            "versions": versions(),
        }

    def start(self) -> TrainState:
        """The state of step 0: drawn from the seed, then filled from what `config.init` names.

        Raises:
          UserError: a checkpoint that cannot be read or does not fit.
        """
        return first_state(self.parts, self.tokenizer)

    def restore(self, checkpoints: Checkpoints) -> tuple[TrainState, int | None]:
        """The newest intact state with its step, or a fresh state with None.

        Raises:
          UserError: the checkpoint is of another step, configuration, data or tokenizer.
        """
        step = checkpoints.newest()
        if step is None:
            if checkpoints.damaged:
                log.info("no intact checkpoint is left: starting anew from step 0")
                keep_old(self.workdir)
            log.info("drawing the first parameters ...")
            return self.start(), None
        folder, words = checkpoints.root / str(step), self.tokenizer.to_json()
        check_fits(folder, step, self.config, words, len(self.source), self.digest, self.beside)
        return checkpoints.restore(step, self.parts.abstract), step

    def restore_best(self, checkpoints: Checkpoints) -> tuple[TrainState, int]:
        """The state of the best checkpoint by `config.best_metric`, with its step.

        Raises:
          UserError: no intact checkpoint has the metric.
        """
        step, metric = checkpoints.best(), self.config.best_metric
        if step is None:
            raise UserError(
                f"no intact checkpoint in {checkpoints.root} has the metric {metric}: repeat the "
                "same command with config.final_weights 'last'."
            )
        log.info(f"evaluating checkpoints/{step}, which is the best by {metric}")
        return checkpoints.restore(step, self.parts.abstract), step


class Batches:
    """Global batches on the mesh, with the time spent waiting for them."""

    def __init__(self, arrays: Iterator[dict[str, Any]], run: TrainingRun) -> None:
        """Wraps what the pipeline yields on this process."""
        self._arrays = Timed(arrays)
        self._run = run

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> Batch:
        run = self._run
        return parallel.to_batch(
            next(self._arrays), run.parts.mesh, run.rows, run.config.batch_size
        )

    def close(self) -> None:
        """Stops reading ahead."""
        self._arrays.close()

    def lap(self) -> float:
        """Seconds waited since the last call."""
        return self._arrays.lap()
