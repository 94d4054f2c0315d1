"""Evaluates a finished run again, or a system that was not trained here.

    big-retrieval evaluate --run=RUN [--step=N] [--eval=NAME,NAME] [--out=FOLDER]
    big-retrieval evaluate --run=RUN --data=FOLDER_OR_FILE [--image=COLUMN] [--text=COLUMN] ...
    big-retrieval evaluate --init=PATH --config=FILE [--tokenizer=PATH] [--pool=mean]
        [--head=lexical] [--out=FOLDER]
    big-retrieval evaluate --untrained --config=FILE [--out=FOLDER]
    big-retrieval evaluate --bm25 --config=FILE [--out=FOLDER]

RUN is a run folder or a checkpoint. --data evaluates it on other data, in any form that `train
--data` takes: retrieval in both directions, or a ranking of judged pairs (clicks). It uses the test
split, if any. By default `evaluate` takes the columns of the training data, or chooses them by
their names, and prints them.

--init, --untrained and --bm25 take the evaluators from --config. --beir adds BEIR's data sets, with
their average as ranking/traffic/nDCG@10.

The command prints the metrics and writes them to FOLDER/evaluation.json, with examples of results
in FOLDER/examples/. FOLDER is the run folder by default; with --data, or without a run folder, only
--out is written. --rankings adds FOLDER/rankings/<evaluator>/ with a TREC run and the metrics of
every query, for `big-retrieval compare`.
"""

import dataclasses
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from big_retrieval.auto_config.data_flags import DataFlags, select_data_flags
from big_retrieval.cli.option_groups import BeirOptions, ConfigOptions, PretrainedOptions
from big_retrieval.cli.options import Flag, only_one
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.config import Config
    from big_retrieval.evals.systems import EvaluatedSystem

FILE = "evaluation.json"
BATCH = 256  # rows encoded at a time
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(ConfigOptions, BeirOptions, PretrainedOptions, DataFlags):
    run: Path | None = None  # Run or checkpoint folder to evaluate
    out: Path | None = None  # Folder of the results; the run folder by default
    # Step of the checkpoint; by default the step of results.json, else the newest intact one
    step: int | None = None
    # With --config: the weights, a run or a third-party file, folder or hub name
    init: str | None = None
    untrained: bool = False  # Evaluate the config's model before its first step
    bm25: bool = False  # BM25 over the texts instead of a model
    rankings: bool = False  # Write rankings (TREC runs) and each query's metrics, too
    # Queries of retrieval evaluators to write examples of, by their names in queries.csv
    show: tuple[str, ...] = ()
    data: str | None = None  # With --run: other files to evaluate it on
    separator: Annotated[str, Flag(needs="data")] = ""  # Text between several texts in a cell
    eval: tuple[str, ...] = ()  # Evaluators to run; all by default


def main(options: EvaluateOptions) -> None:
    mode, folder = _mode(options), _folder(options)
    for flag in ("show", "rankings"):
        if getattr(options, flag) and folder is None:
            raise UserError(f"--{flag} needs a folder to write to. Add --out=FOLDER.")
    # Locks the results, not the run: a run that still trains can be evaluated.
    with options.owning_file(folder and folder / FILE):
        _evaluate(options, mode, folder)


def _evaluate(options: EvaluateOptions, mode: str, folder: Path | None) -> None:
    from big_retrieval.config import schema
    from big_retrieval.io.durable import write_bytes
    from big_retrieval.io.manifest import to_json
    from big_retrieval.report.example_files.folder import ExampleFolder
    from big_retrieval.runtime.extras import Extras
    from big_retrieval.sweep.spec import inputs_sha256
    from big_retrieval.train.logging import log_table

    config = options.load_config() if mode else None
    with tempfile.TemporaryDirectory() as scratch:
        system = _system(options, mode, config, Path(scratch))
        examples = None
        if folder is not None:
            examples = ExampleFolder(folder, system.step, Extras(), options.show)
        metrics = system.run(folder, examples, rankings=options.rankings)
        if examples is not None:
            examples.warn_of_unknown()
    log_table(metrics)
    if folder is None:
        reason = f"{options.run} is not a run folder" if options.run and not options.data else ""
        log.info(f"{reason or 'no --out'}: nothing is written; --out=FOLDER writes the results")
        return
    content = {**metrics, "checkpoint": system.checkpoint}
    if config is not None:  # for a sweep to compare
        flag = f"--init={options.init}" if mode == "init" else f"--{mode}"
        content["inputs_sha256"] = inputs_sha256(schema.as_saved(config), flag)
    write_bytes(folder / FILE, to_json(content))
    log.info(f"written to {folder / FILE}")
    if not mode and not options.out:
        log.info(f"for the report: big-retrieval report {folder}")


def _mode(options: EvaluateOptions) -> str:
    """Returns "init", "untrained" or "bm25"; "" for a run. Rejects flags that contradict."""
    mode = only_one(options, "run", "init", "untrained", "bm25")
    only_one(options, "data", "eval")
    only_one(options, "data", "beir")
    if mode != "init" and any(options.model_flags().values()):
        raise UserError("--tokenizer, --pool and --head are for --init. Remove them.")
    if not mode:
        raise UserError("--run is missing: the run or checkpoint folder to evaluate.")
    if mode == "run":
        if options.config is not None:
            raise UserError(
                "--config is not for evaluate with a run, whose checkpoint has a config. Remove "
                "it, or add --init, --untrained or --bm25."
            )
        return ""
    for flag, value in (("data", options.data), ("step", options.step)):
        if value is not None:
            raise UserError(f"--{flag} is for --run. Remove it, or --{mode}.")
    if options.config is None:
        raise UserError(f"--config is missing: --{mode} needs its evaluators and fields.")
    return mode


def _folder(options: EvaluateOptions) -> Path | None:
    """Returns the folder of evaluation.json, None to write nothing; never another run's folder."""
    run, folder = options.run, options.out
    if folder is None:
        is_run = run is not None and (run / "checkpoints").is_dir() and not options.data
        return run if is_run else None
    is_same = run is not None and run.resolve() == folder.resolve()
    if (folder / "checkpoints").exists() and not is_same:
        raise UserError(f"--out {folder} is another run's folder. Choose another folder.")
    return folder


def _with_evaluators(options: EvaluateOptions, config: "Config", scratch: Path) -> "Config":
    """Returns a config with the evaluators of the flags; --data may write rows into `scratch`."""
    if options.data:
        from big_retrieval.auto_config.evaluated import on_data

        flags = select_data_flags(options)
        return on_data(config, options.data, flags, scratch, options.separator)
    config = options.add_evaluators(config)
    for name in options.eval:
        if name not in config.evals:
            names = ", ".join(sorted(config.evals)) or "none"
            raise UserError(f"--eval: no evaluator {name!r}. The config has: {names}.")
    selected = {name: evaluator for name, evaluator in config.evals.items() if name in options.eval}
    return dataclasses.replace(config, evals=selected) if selected else config


def _system(
    options: EvaluateOptions, mode: str, config: "Config | None", scratch: Path
) -> "EvaluatedSystem":
    """Returns the system of a mode; `config` is the config of --config."""
    from big_retrieval.config.checks import check
    from big_retrieval.evals.systems import bm25_system, model_system
    from big_retrieval.inference.load import load
    from big_retrieval.interop.model import import_model
    from big_retrieval.io.manifest import read_meta
    from big_retrieval.train.build import untrained

    if config is None:
        model = load(Path(str(options.run)), step=options.step, batch_size=BATCH)
        meta = read_meta(model.folder)
        config = _with_evaluators(options, model.config, scratch)
        model = dataclasses.replace(model, config=config)
        saved = {} if options.data else meta.get("beside", {})
        return model_system(model, str(model.folder), model.folder.name, meta["step"], saved)
    config = _with_evaluators(options, config, scratch)
    if mode == "bm25":
        check(config, trains=False)
        return bm25_system(config)
    if mode == "untrained":
        name = "the start of config.init" if config.init else "the untrained model"
        checkpoint = "config.init" if config.init else "untrained"
        return model_system(untrained(config, batch_size=BATCH), name, checkpoint)
    model = import_model(str(options.init), like=config, batch_size=BATCH, **options.model_flags())
    check(model.config, trains=False)
    return model_system(model, str(model.folder), str(options.init))
