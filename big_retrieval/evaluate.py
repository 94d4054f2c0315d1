"""Evaluates a finished run again, or a model that was not trained here.

    python -m big_retrieval.evaluate --workdir=RUN
    python -m big_retrieval.evaluate --init=PATH --config=FILE [--tokenizer=PATH] [--pool=mean]
        [--head=lexical]

The first reads nothing but a checkpoint folder. The numbers go to the screen and, where --workdir
is a whole run and no single checkpoint, to RUN/evaluation.json, with examples of what was found
in RUN/examples/. The second takes the model from a file, folder or hub name (see
`big_retrieval.interop`) and the evaluators from a config; with --workdir it writes there, too.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from big_retrieval import cli
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.loading import TrainedModel

STEP = flags.DEFINE_integer("step", None, "Which checkpoint; the newest intact one by default")
INIT = flags.DEFINE_string(
    "init", None, "A model that was not trained here: file, folder, hub name"
)
TOKENIZER = flags.DEFINE_string("tokenizer", "", "With --init: where it comes without one")
POOL = flags.DEFINE_enum(
    "pool", None, ("first", "last", "mean"), "With --init: where it does not say how"
)
HEAD = flags.DEFINE_enum(
    "head", None, ("lexical",), "With --init: keep the masked-language head, as a lexical one"
)
BATCH = 256  # rows encoded at a time


def main() -> None:
    """Loads the model and runs all of its evaluators."""
    from big_retrieval.data.build import field_specs, make_reading, make_source
    from big_retrieval.evals import evaluators as evals
    from big_retrieval.evals.examples import Folder
    from big_retrieval.manifest import to_json, write_bytes
    from big_retrieval.train.logging import say, table

    model, folder, step = _imported(say) if INIT.value else _trained()
    say(f"evaluating {model.folder}")
    config = model.config
    sources = {name: make_source(ev.data) for name, ev in config.evals.items()}
    specs = field_specs(config, model.tokenizer)
    reading = make_reading(config.loader)
    evaluators = evals.make_evaluators(config, sources, specs, model.encoder, reading)
    for evaluator in evaluators.values():
        evaluator.check()
    examples = None if folder is None else Folder(folder, step, say)
    found = evals.run(evaluators, set(evaluators), model.weights, say, examples)
    table(found)
    if folder is None:
        place = cli.WORKDIR.value or model.folder
        say(f"{place} is no run folder, so nothing is written to it")
        return
    target = folder / "evaluation.json"
    checkpoint = INIT.value or model.folder.name
    write_bytes(target, to_json({**found, "checkpoint": checkpoint}))
    say(f"written to {target}")
    if not INIT.value:
        say(f"for the report: python -m big_retrieval.report {folder}")


def _trained() -> "tuple[TrainedModel, Path | None, int]":
    """The model of a run or checkpoint folder, the folder to write to, and its step."""
    from big_retrieval.loading import load
    from big_retrieval.manifest import read_meta

    if not cli.WORKDIR.value:
        raise UserError("--workdir is missing: the run folder to evaluate.")
    if cli.CONFIG.value is not None:
        raise UserError("--config is not for evaluate: it reads the checkpoint's; leave it out.")
    if TOKENIZER.value or POOL.value or HEAD.value:
        raise UserError("--tokenizer, --pool and --head go with --init; a run of ours has them.")
    workdir = Path(cli.WORKDIR.value)
    model = load(workdir, step=STEP.value, batch_size=BATCH)
    whole = (workdir / "checkpoints").is_dir()
    return model, workdir if whole else None, read_meta(model.folder)["step"]


def _imported(say: Callable[[str], None]) -> "tuple[TrainedModel, Path | None, int]":
    """A model of another library with the evaluators of --config."""
    from big_retrieval.checks import check
    from big_retrieval.interop.model import import_model

    if STEP.value is not None:
        raise UserError("--step is for runs of ours; leave it out with --init.")
    if cli.CONFIG.value is None:
        raise UserError("--config is missing: with --init its evaluators and fields are used.")
    like = cli.load_config()
    model = import_model(
        str(INIT.value),
        like=like,
        tokenizer=TOKENIZER.value,
        pool=POOL.value or "",
        head=HEAD.value or "",
        batch_size=BATCH,
        say=say,
    )
    check(model.config)
    folder = Path(cli.WORKDIR.value) if cli.WORKDIR.value else None
    if folder is not None:
        if (folder / "checkpoints").exists():
            raise UserError(f"--workdir {folder} is a run; give another folder with --init.")
        folder.mkdir(parents=True, exist_ok=True)
    return model, folder, 0


if __name__ == "__main__":
    cli.run(main)
