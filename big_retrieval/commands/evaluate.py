"""Evaluates a finished run again, or something that was not trained here.

    big-retrieval evaluate --run=RUN [--step=N] [--eval=NAME,NAME] [--out=FOLDER]
    big-retrieval evaluate --run=RUN --data=FOLDER_OR_FILE [--image=COLUMN] [--text=COLUMN] ...
    big-retrieval evaluate --init=PATH --config=FILE [--tokenizer=PATH] [--pool=mean]
        [--head=lexical] [--out=FOLDER]
    big-retrieval evaluate --untrained --config=FILE [--out=FOLDER]
    big-retrieval evaluate --bm25 --config=FILE [--out=FOLDER]

RUN is a run folder or a single checkpoint, which need no config. --data evaluates it on other data,
in any form that `train --data` takes: retrieval, both ways, between images and texts, or between
queries and documents; of judged pairs (clicks), a ranking of all documents for each query. Of data
with splits, that for testing counts. --image, --text, --query, --document, --score and
--document_id name columns; else they are those of the training data, or guessed and told.

The others take the evaluators from --config: for a model of another library from a file, folder or
hub name (see `big-retrieval import`), for the config's own model before its first step, and for
BM25, which ranks by the words that query and document share.

--beir=FOLDER adds BEIR's data sets, or some of them (--beir_sets=scifact,fiqa), to the evaluators
of any text model or config, with their average as ranking/traffic/nDCG@10. --eval runs some of the
evaluators only.

The metrics go to the screen and to FOLDER/evaluation.json, with examples of what was found in
FOLDER/examples/. FOLDER is the run folder by default; nothing is written where there is neither a
run folder nor --out, and with --data only into --out. --rankings adds FOLDER/rankings/<evaluator>/
with a TREC run and the metrics of every query, which `big-retrieval compare` compares.
--show=12,40 writes the examples of these queries, too, by their names in queries.csv.
"""

import dataclasses
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from big_retrieval import cli
from big_retrieval.cli import beir, foreign
from big_retrieval.cli.roles import data_flags
from big_retrieval.config import Config, schema
from big_retrieval.config.checks import check
from big_retrieval.errors import UserError
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import to_json
from big_retrieval.runtime import locks
from big_retrieval.sweep.spec import inputs_sha256

if TYPE_CHECKING:
    from big_retrieval.evals.systems import EvaluatedSystem

WITHOUT = ("workdir",)
RUN = flags.DEFINE_string("run", None, "Run or checkpoint folder to evaluate")
OUT = flags.DEFINE_string("out", None, "Folder of the results; that of the run by default")
STEP = flags.DEFINE_integer(
    "step", None, "Which checkpoint; that of results.json by default, else the newest intact one"
)
INIT = flags.DEFINE_string(
    "init", None, "With --config: the weights, a run of ours or a file, folder, hub name of others"
)
UNTRAINED = flags.DEFINE_bool("untrained", False, "The config's model before its first step")
BM25 = flags.DEFINE_bool("bm25", False, "BM25 over the texts instead of a model")
RANKINGS = flags.DEFINE_bool(
    "rankings", False, "Write rankings (TREC runs) and each query's metrics, too"
)
SHOW = flags.DEFINE_list("show", [], "Queries of retrieval evaluators to write examples of, too")
DATA = flags.DEFINE_string("data", None, "With --run: other files to evaluate it on")
SEPARATOR = flags.DEFINE_string("separator", "", "With --data: between several texts in a cell")
EVAL = flags.DEFINE_list("eval", [], "Evaluators to run; all by default")
FILE = "evaluation.json"
BATCH = 256  # rows encoded at a time
log = logging.getLogger(__name__)


def main() -> None:
    """Evaluates what the flags ask for."""
    mode = _mode()
    folder = _folder()
    if SHOW.value and folder is None:
        raise UserError("--show needs a folder to write to: give --out.")
    if RANKINGS.value and folder is None:
        raise UserError("--rankings needs a folder to write to: give --out.")
    if folder is None:
        _evaluate(mode, None)
        return
    # A run that still trains can be evaluated: that writes other files, with a lock of their own.
    file = folder / FILE
    with cli.owning(locks.beside(file), file):
        _evaluate(mode, folder)


def _evaluate(mode: str, folder: Path | None) -> None:
    """Evaluates, and writes what was found into a folder; None: nowhere."""
    from big_retrieval.report.example_files.folder import ExampleFolder
    from big_retrieval.runtime.extras import Extras
    from big_retrieval.train.logging import table

    with tempfile.TemporaryDirectory() as scratch:
        # Read once: it takes the evaluators that are set to None out of the flag's value.
        given = cli.load_config() if mode else None
        system = _system(mode, given, Path(scratch))
        examples = None
        if folder is not None:
            examples = ExampleFolder(folder, system.step, Extras(), SHOW.value)
        found = system.run(folder, examples, rankings=RANKINGS.value)
        if examples is not None:
            examples.warn_of_unknown()
    table(found)
    if folder is None:
        no_run = f"{RUN.value} is no run folder, so nothing is written to it; "
        told = no_run if RUN.value and not DATA.value else "nothing is written; "
        log.info(f"{told}--out says where to")
        return
    content = {**found, **_inputs(mode, given), "checkpoint": system.checkpoint}
    write_bytes(folder / FILE, to_json(content))
    log.info(f"written to {folder / FILE}")
    if not mode and not OUT.value:
        log.info(f"for the report: big-retrieval report {folder}")


def _mode() -> str:
    """What is evaluated: "init", "untrained", "bm25", or "" for a run of ours.

    Raises:
      UserError: flags that do not go together.
    """
    modes = [flag.name for flag in (INIT, UNTRAINED, BM25) if flag.value]
    mode = modes[0] if modes else ""
    if len(modes) > 1:
        raise UserError(f"--{modes[0]} and --{modes[1]} are both given; keep one of them.")
    if mode and RUN.value:
        raise UserError(f"--run and --{mode} are both given; keep one of them.")
    if not mode and not RUN.value:
        raise UserError("--run is missing: the run or checkpoint folder to evaluate.")
    if not mode and cli.CONFIG.value is not None:
        raise UserError(
            "--config is not for evaluate with a run, whose checkpoint has one: leave it out, or "
            "say --init, --untrained or --bm25."
        )
    if mode != "init" and any(foreign.given().values()):
        raise UserError("--tokenizer, --pool and --head go with --init; a run of ours has them.")
    columns = [name for name, value in data_flags().items() if value]
    columns += ["separator"] if SEPARATOR.value else []
    if columns and not DATA.value:
        raise UserError(f"--{columns[0]} goes with --data, which is missing.")
    if DATA.value and mode:
        raise UserError(f"--data goes with --run; with --{mode} the config names the data.")
    if DATA.value and (EVAL.value or beir.FOLDER.value):
        other = "--eval" if EVAL.value else "--beir"
        raise UserError(f"--data and {other} are both given; keep one of them.")
    if mode and STEP.value is not None:
        raise UserError(f"--step is for runs of ours; leave it out with --{mode}.")
    if mode and cli.CONFIG.value is None:
        raise UserError(f"--config is missing: with --{mode} its evaluators and fields are used.")
    return mode


def _inputs(mode: str, config: Config | None) -> dict[str, str]:
    """Names config and mode in evaluation.json, for a sweep to compare; not of runs of ours."""
    if config is None:
        return {}
    flag = f"--init={INIT.value}" if mode == "init" else f"--{mode}"
    return {"inputs_sha256": inputs_sha256(schema.as_saved(config), flag)}


def _folder() -> Path | None:
    """Where evaluation.json goes; None: nowhere.

    Raises:
      UserError: the folder is a run's, but something else is evaluated.
    """
    run = Path(RUN.value) if RUN.value else None
    if not OUT.value:
        own = run is not None and (run / "checkpoints").is_dir() and not DATA.value
        return run if own else None
    folder = Path(OUT.value)
    own = run is not None and run.resolve() == folder.resolve()
    if (folder / "checkpoints").exists() and not own:
        raise UserError(f"--out {folder} is a run, and something else is evaluated; give another.")
    return folder


def _config(config: Config, scratch: Path) -> Config:
    """The config with the evaluators that the flags ask for.

    Args:
      config: of the model.
      scratch: takes rows of --data that have to be written anew.

    Raises:
      UserError: there is no evaluator of this name, or the data do not fit.
    """
    from big_retrieval.own_data.columns import DataFlags
    from big_retrieval.own_data.evaluated import on_data

    if DATA.value:
        return on_data(config, DATA.value, DataFlags(**data_flags()), scratch, SEPARATOR.value)
    config = beir.added(config)
    for name in EVAL.value:
        if name not in config.evals:
            known = ", ".join(sorted(config.evals)) or "none at all"
            raise UserError(f"--eval: there is no evaluator {name!r}; this config has {known}.")
    chosen = {name: each for name, each in config.evals.items() if name in EVAL.value}
    return dataclasses.replace(config, evals=chosen) if chosen else config


def _system(mode: str, given: Config | None, scratch: Path) -> "EvaluatedSystem":
    """The system of a mode of `_mode`; `given`: by --config; `scratch`: as of `_config`."""
    from big_retrieval.evals.systems import bm25_system, model_system
    from big_retrieval.inference.load import load
    from big_retrieval.interop.model import import_model
    from big_retrieval.io.manifest import read_meta
    from big_retrieval.train.build import untrained

    if given is None:
        model = load(Path(str(RUN.value)), step=STEP.value, batch_size=BATCH)
        meta = read_meta(model.folder)
        model = dataclasses.replace(model, config=_config(model.config, scratch))
        saved = {} if DATA.value else meta.get("beside", {})
        return model_system(model, str(model.folder), model.folder.name, meta["step"], saved)
    config = _config(given, scratch)
    if mode == "bm25":
        check(config, trains=False)
        return bm25_system(config)
    if mode == "untrained":
        name = "the start of config.init" if config.init else "the untrained model"
        checkpoint = "config.init" if config.init else "untrained"
        return model_system(untrained(config, batch_size=BATCH), name, checkpoint)
    model = import_model(str(INIT.value), like=config, batch_size=BATCH, **foreign.given())
    check(model.config, trains=False)
    return model_system(model, str(model.folder), str(INIT.value))
