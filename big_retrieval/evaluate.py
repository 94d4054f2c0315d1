"""Evaluates a finished run again: `python -m big_retrieval.evaluate --workdir=RUN`.

Reads nothing but a checkpoint folder. The numbers go to the screen and, where --workdir is a whole
run and no single checkpoint, to RUN/evaluation.json, with examples of what was found in
RUN/examples/.
"""

from pathlib import Path

from absl import flags

from big_retrieval import cli
from big_retrieval.errors import UserError

STEP = flags.DEFINE_integer("step", None, "Which checkpoint; the newest intact one by default")


def main() -> None:
    """Loads the model and runs all of its evaluators."""
    if not cli.WORKDIR.value:
        raise UserError("--workdir is missing: the run folder to evaluate.")
    if cli.CONFIG.value is not None:
        raise UserError("--config is not for evaluate: it reads the checkpoint's; leave it out.")
    workdir = Path(cli.WORKDIR.value)
    from big_retrieval.data.build import field_specs, make_reading, make_source
    from big_retrieval.evals import evaluators as evals
    from big_retrieval.evals.examples import Folder
    from big_retrieval.loading import load
    from big_retrieval.manifest import read_meta, to_json, write_bytes
    from big_retrieval.train.logging import say, table

    trained = load(workdir, step=STEP.value, batch_size=256)
    say(f"evaluating {trained.folder}")
    config = trained.config
    sources = {name: make_source(ev.data) for name, ev in config.evals.items()}
    specs = field_specs(config, trained.tokenizer)
    reading = make_reading(config.loader)
    evaluators = evals.make_evaluators(config, sources, specs, trained.encoder, reading)
    whole = (workdir / "checkpoints").is_dir()
    examples = Folder(workdir, read_meta(trained.folder)["step"], say) if whole else None
    found = evals.run(evaluators, set(evaluators), trained.weights, say, examples)
    table(found)
    if not whole:
        say(f"{workdir} is no run folder, so nothing is written to it")
        return
    target = workdir / "evaluation.json"
    write_bytes(target, to_json({**found, "checkpoint": trained.folder.name}))
    say(f"written to {target}; for the report: python -m big_retrieval.report {workdir}")


if __name__ == "__main__":
    cli.run(main)
