"""Everything that a run is made of, put together once before the first step."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from big_retrieval import parallel
from big_retrieval.config import Config
from big_retrieval.config.checks import check
from big_retrieval.data.batches import try_record
from big_retrieval.data.build import (
    make_eval_sources,
    make_labels,
    make_negatives,
    make_order,
    make_readers,
    make_reading,
    make_source,
    make_tokenizer,
)
from big_retrieval.data.duplicates import content_ids
from big_retrieval.data.sources import RecordSource
from big_retrieval.data.text.tokenizers import FixedLengthTokenizer
from big_retrieval.errors import UserError
from big_retrieval.evals.evaluators import make_evaluators
from big_retrieval.inference.encoder import Encoder
from big_retrieval.io.durable import write_bytes
from big_retrieval.train.build import build_model
from big_retrieval.train.content import fingerprints
from big_retrieval.train.resume import open_run_folder, with_values_of_the_run
from big_retrieval.train.run import TrainingRun
from big_retrieval.train.start import run_length

log = logging.getLogger(__name__)


def set_up(config: Config, workdir: Path, devices: Sequence[Any] | None = None) -> TrainingRun:
    """Checks everything that can be checked and puts the run together.

    Args:
      config: typed; not yet checked.
      workdir: the run folder.
      devices: all of all processes unless given.

    Raises:
      UserError: an impossible configuration or mesh, data that are missing or do not fit, a run
        folder that cannot be written or belongs to another run.
    """
    config = with_values_of_the_run(workdir, config)
    check(config)
    mesh = parallel.make_mesh(config, devices)
    log.info("opening the data ...")
    source = make_source(config.data)
    eval_sources = make_eval_sources(config)
    open_run_folder(workdir, config)
    reading = make_reading(config.loader, _damaged_file(workdir))
    tokenizer = _tokenizer(config, source, workdir)
    readers = make_readers(config, tokenizer, source)
    for name, field in config.fields.items():
        if field.generated:
            column = field.column and f" where records have no column {field.column!r}"
            log.info(f"config.fields.{name}: random values{column} (its key generated is True)")
    try_record(source, readers, make_labels(config), make_negatives(config))
    contents = content_ids(config, source, readers)
    total_steps = run_length(config, len(source))
    log.info("building the model ...")
    parts = build_model(
        config,
        mesh,
        vocab_size=tokenizer.vocab_size,
        total_steps=total_steps,
        steps_per_epoch=len(source) / config.batch_size,
        words=tokenizer,
    )
    for sentence in parts.undivided:
        log.warning(f"{sentence}; of word tables, round config.towers.<tower>.vocab_size up")
    encoder = Encoder(parts.model, mesh, config.batch_size)
    evaluators = make_evaluators(config, eval_sources, readers, encoder, reading)
    if evaluators:
        log.info("checking what the evaluators read ...")
    for evaluator in evaluators.values():
        evaluator.check()
    return TrainingRun(
        workdir=workdir,
        parts=parts,
        tokenizer=tokenizer,
        source=source,
        readers=readers,
        order=make_order(source, config.seed),
        rows=parallel.local_rows(mesh, config.batch_size),
        evaluators=evaluators,
        total_steps=total_steps,
        reading=reading,
        beside=fingerprints(readers, source),
        contents=contents,
    )


def _damaged_file(workdir: Path) -> Path:
    """Where this process names the damaged records that it met."""
    process = jax.process_index()
    return workdir / ("damaged.jsonl" if process == 0 else f"damaged_{process}.jsonl")


def _tokenizer(config: Config, source: RecordSource, workdir: Path) -> FixedLengthTokenizer:
    """The run's tokenizer, kept in the run folder so that a resumed run need not learn it again."""
    kept = workdir / "tokenizer.json"
    if kept.exists():
        try:
            return FixedLengthTokenizer.load(kept)
        except UserError as problem:
            raise UserError(
                f"{str(problem).rstrip('.')}: delete {kept} and it is made anew, or put the "
                "tokenizer.json of the newest checkpoint in its place."
            ) from None
    if not config.tokenizer.path:
        log.info("learning the vocabulary from the captions ...")
    tokenizer = make_tokenizer(config, source)
    if jax.process_index() == 0:
        write_bytes(kept, tokenizer.to_json().encode())
    return tokenizer
