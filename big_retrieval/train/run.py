"""A training run: `set_up` creates it with its batches, checkpoints and states."""

import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from big_retrieval import parallel
from big_retrieval.batch import Batch
from big_retrieval.config import Config
from big_retrieval.data import build as data
from big_retrieval.data.batches import try_record
from big_retrieval.data.damage import Damage
from big_retrieval.data.duplicates import content_ids
from big_retrieval.data.fields.contents import ContentIds
from big_retrieval.data.order import Order
from big_retrieval.data.pipeline import Timed, train_batches
from big_retrieval.data.sources import RecordSource
from big_retrieval.data.text.tokenizers import FixedLengthTokenizer
from big_retrieval.errors import UserError
from big_retrieval.evals import evaluators as evals
from big_retrieval.inference.encoder import Encoder
from big_retrieval.inference.fingerprint import versions
from big_retrieval.io.durable import write_bytes
from big_retrieval.runtime.extras import Extras
from big_retrieval.train import resume
from big_retrieval.train.build import BuiltModel, build_model, first_state, run_length
from big_retrieval.train.checkpoint import Checkpoints, model_files
from big_retrieval.train.data_fingerprint import fingerprints
from big_retrieval.train.logging import keep_old
from big_retrieval.train.schedules import title
from big_retrieval.train.state import TrainState
from big_retrieval.train.step import abstract_batch, compile_step
from big_retrieval.train.step_figures import log_step

log = logging.getLogger(__name__)


def set_up(config: Config, workdir: Path, devices: Sequence[Any] | None = None) -> "TrainingRun":
    """Creates a run, and reads one record and the evaluators' data, so that errors appear early.

    Args:
      devices: all devices of all processes by default.

    Raises:
      UserError: the mesh does not fit, data are missing or do not fit, or the run folder cannot be
        written or belongs to another run.
    """
    mesh = parallel.make_mesh(config, devices)

    log.info("opening the data ...")
    source = data.make_source(config.data)
    eval_sources = data.make_eval_sources(config)
    resume.open_run_folder(workdir, config)
    process = jax.process_index()
    damaged = workdir / (f"damaged_{process}.jsonl" if process else "damaged.jsonl")
    reading = data.make_reading(config.loader, damaged)
    assert reading.damage is not None
    tokenizer = _open_tokenizer(config, source, workdir)
    readers = data.make_readers(config, tokenizer, source)
    for name, spec in config.fields.items():
        if spec.generated:
            column = spec.column and f" if a record has no column {spec.column!r}"
            log.info(f"config.fields.{name}: random values{column} (generated=True)")
    labels, negatives = data.make_labels(config), data.make_negatives(config)
    try_record(source, readers, labels, negatives)
    contents = content_ids(config, source, readers)
    order = source.order(config.seed)
    read = functools.partial(
        train_batches,
        source,
        fields=readers,
        order=order,
        batch_size=config.batch_size,
        rows=parallel.local_rows(mesh, config.batch_size),
        labels=labels,
        negatives=negatives,
        contents=contents,
        reading=reading,
    )

    log.info("building the model ...")
    parts = build_model(
        config,
        mesh,
        vocab_size=tokenizer.vocab_size,
        total_steps=run_length(config, len(source)),
        steps_per_epoch=len(source) / config.batch_size,
        words=tokenizer,
    )
    for message in parts.undivided:
        log.warning(f"{message}; for a word table, round up config.towers.<tower>.vocab_size")

    encoder = Encoder(parts.model, mesh, config.batch_size)
    evaluators = evals.make_evaluators(config, eval_sources, readers, encoder, reading)
    if evaluators:
        log.info("checking the evaluators' data ...")
    for evaluator, context in evaluators.values():
        evaluator.check_data(context)
    return TrainingRun(
        workdir=workdir,
        parts=parts,
        tokenizer=tokenizer,
        source=source,
        read=read,
        order=order,
        evaluators=evaluators,
        damage=reading.damage,
        fingerprints=fingerprints(readers, source, eval_sources),
        contents=contents,
    )


def _open_tokenizer(config: Config, source: RecordSource, workdir: Path) -> FixedLengthTokenizer:
    """Reads the tokenizer from the run folder; if it is missing, creates and writes it."""
    path = workdir / "tokenizer.json"
    if path.exists():
        try:
            return FixedLengthTokenizer.load(path)
        except UserError as error:
            raise UserError(
                f"{error} Delete {path} to create it again, or copy tokenizer.json from the newest "
                "checkpoint."
            ) from None
    if not config.tokenizer.path:
        log.info("learning the vocabulary from the captions ...")
    tokenizer = data.make_tokenizer(config, source)
    if jax.process_index() == 0:
        write_bytes(path, tokenizer.to_json().encode())
    return tokenizer


@dataclass(frozen=True)
class TrainingRun:
    """A run that is ready to train.

    Attributes:
      read: yields this process's arrays of the batches start_batch .. stop_batch - 1.
      order: maps positions in the run to records.
      evaluators: metric prefix -> evaluator.
      damage: damaged records so far.
      fingerprints: see `data_fingerprint.fingerprints`.
      contents: ids of rows with equal content; None if all contents differ.
      extras: contexts of outputs that the run does not need.
    """

    workdir: Path
    parts: BuiltModel
    tokenizer: FixedLengthTokenizer
    source: RecordSource
    read: Callable[..., Iterator[dict[str, Any]]]
    order: Order
    evaluators: Mapping[str, evals.BoundEvaluator]
    damage: Damage
    fingerprints: Mapping[str, str]
    contents: ContentIds | None
    extras: Extras = field(default_factory=Extras)

    @property
    def config(self) -> Config:
        return self.parts.config

    @property
    def total_steps(self) -> int:
        """Length of the run in steps."""
        return self.parts.updates.timeline.total_steps

    def _interval_ends(self, key: str, step: int) -> bool:
        """Returns True if the interval `key` or `<key>_epochs` of the config ends at a step."""
        steps, epochs = getattr(self.config, key), getattr(self.config, f"{key}_epochs")
        timeline = self.parts.updates.timeline
        return bool(steps and step % steps == 0) or timeline.ends(step, epochs)

    def due(self, step: int) -> set[str]:
        """Returns the evaluators that run after a step."""
        ends = self._interval_ends("eval_every", step)
        return evals.due(self.config, step, self.total_steps, ends)

    def saves(self, step: int, due: set[str]) -> bool:
        """Returns True if a checkpoint is written after a step with these evaluators."""
        return (
            step == self.total_steps
            or self._interval_ends("checkpoint_every", step)
            or evals.measures_best(self.config, due)
        )

    def batches(self, first: int, last: int) -> Timed:
        """Reads this process's rows for the steps first + 1 .. last, ahead of time."""
        return Timed(self.read(start_batch=first, stop_batch=last))

    def to_mesh(self, arrays: Mapping[str, Any]) -> Batch:
        """Puts the rows of all processes on the mesh as one global batch."""
        return parallel.to_batch(arrays, self.parts.mesh, self.config.batch_size)

    def digest(self, batch: int) -> str:
        """Returns a fingerprint of the record ids of a batch (from 0)."""
        size = self.config.batch_size
        return self.order.digest(batch * size, size)

    def compile_steps(
        self, steps: range
    ) -> tuple[dict[int, jax.stages.Compiled], list[dict[str, Any]]]:
        """Compiles the training steps of all remaining phases before training.

        Args:
          steps: finished steps before each step to run.

        Returns:
          (compiled step by index of the phase, `step_figures.log_step` of each).
        """
        parts, compiled, figures = self.parts, {}, []
        batch, spans = abstract_batch(self.config, parts.mesh, self.contents), parts.updates.spans
        for index, span in enumerate(spans):
            if max(span.start, steps.start) >= min(span.stop, steps.stop):
                continue
            phase = f" of phase {title(span)}" if len(spans) > 1 else ""
            log.info(f"compiling the training step{phase} ...")
            start = time.monotonic()
            compiled[index] = compile_step(parts.steps[index], parts.abstract, batch, parts.mesh)
            log.info(f"compiled in {time.monotonic() - start:.1f} s")
            figures.append(log_step(compiled[index], parts))
        return compiled, figures

    @functools.cached_property
    def checkpoints(self) -> Checkpoints:
        """Checkpoints of the run folder, opened at the first use."""
        return Checkpoints(
            self.workdir / "checkpoints",
            files=model_files(self.config, self.tokenizer, self.workdir),
            logs=[self.workdir / "metrics.jsonl"],
            best_metric=self.config.best_metric,
            best_mode=self.config.best_mode,
        )

    def position(self, step: int) -> dict[str, Any]:
        """Returns the entries of meta.json about the data and the position in it."""
        return {
            "step": step,
            "position": step * self.config.batch_size,
            "records": len(self.source),
            "next_records": self.digest(step),
            "beside": dict(self.fingerprints),
        }

    def meta(
        self, step: int, metrics: Mapping[str, float] | None, training: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns meta.json of a checkpoint.

        Args:
          metrics: metrics of its evaluators; None if an evaluator failed.
          training: values logged at this step; empty if the step is not logged.
        """
        return {
            **self.position(step),
            "evaluated": metrics is not None,
            "metrics": dict(metrics or {}),
            "training": dict(training),
            "total_steps": self.total_steps,
            "vocab_size": self.tokenizer.vocab_size,
            "versions": versions(),
        }

    def restore(self) -> tuple[TrainState, int | None]:
        """Returns the newest intact state with its step, or the first state with None.

        Raises:
          UserError: see `check_fits` and `first_state`.
        """
        step = self.checkpoints.newest()
        if step is None:
            if self.checkpoints.damaged:
                log.info("no intact checkpoint: starting from step 0")
                keep_old(self.workdir)
            log.info("drawing the first parameters ...")
            return first_state(self.parts, self.tokenizer), None
        folder, tokenizer = self.checkpoints.root / str(step), self.tokenizer.to_json().encode()
        resume.check_fits(folder, self.config, tokenizer, self.position(step))
        return self.checkpoints.restore(step, self.parts.abstract), step

    def restore_best(self) -> tuple[TrainState, int]:
        """Returns the state of the best checkpoint by `config.best_metric`, with its step.

        Raises:
          UserError: no intact checkpoint has the metric.
        """
        step, metric = self.checkpoints.best(), self.config.best_metric
        if step is None:
            raise UserError(
                f"no intact checkpoint in {self.checkpoints.root} has the metric {metric}. Repeat "
                "the same command with config.final_weights='last'."
            )
        log.info(f"evaluating checkpoints/{step}, the best by {metric}")
        return self.checkpoints.restore(step, self.parts.abstract), step
