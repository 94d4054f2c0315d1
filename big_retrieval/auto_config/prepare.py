"""Writes the config file of a run on files, once per run folder."""

import importlib.util
import json
import logging
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from big_retrieval import config as configs
from big_retrieval.auto_config import machine
from big_retrieval.auto_config.answers import answers_config
from big_retrieval.auto_config.beir import beir_task
from big_retrieval.auto_config.captions import captions_config
from big_retrieval.auto_config.clicks import clicks_config
from big_retrieval.auto_config.columns import DataFlags, Roles
from big_retrieval.auto_config.sources import FOLDER, table_task
from big_retrieval.auto_config.tasks import config_file
from big_retrieval.config import Config
from big_retrieval.errors import UserError
from big_retrieval.inference.saved import read_config
from big_retrieval.io import durable
from big_retrieval.io.manifest import to_json
from big_retrieval.runtime.messages import count_of

log = logging.getLogger(__name__)
CONFIG, MADE_FROM = "config.py", "made_from.json"  # in the run folder
FEW = 100  # a warning is logged below this number of records
KINDS = {"captions": captions_config, "answers": answers_config, "clicks": clicks_config}


@dataclass(frozen=True)
class TrainingRequest:
    """Flags of `train --data`; `init` is a folder of weights, "none", or "" for local weights."""

    data: str
    flags: DataFlags
    init: str = ""


def prepare(request: TrainingRequest, workdir: Path, changed: Sequence[str] = ()) -> Path:
    """Writes the config file of a run, or returns an earlier one; `changed` flags are logged."""
    path = workdir / CONFIG
    request = replace(request, data=os.path.expanduser(request.data))
    if (workdir / "checkpoints").is_dir():
        _check_same(request, workdir)
        log.info(f"resuming with {path}, which was written for {request.data}")
        return path
    task = beir_task(request.data, workdir / FOLDER)
    if task is not None and request.flags != DataFlags():
        raise UserError(
            f"{request.data} is a folder in BEIR's form, whose columns are known. Give --data "
            "alone, without flags for columns."
        )
    task = task or table_task(request.data, request.flags, workdir)
    if task.records < FEW:
        log.warning(
            f"only {count_of(task.records, 'record')} for training: enough to test the setup, but "
            "the model learns little"
        )
    task = replace(task, init=_init(request, task.roles))
    sections = KINDS[task.roles.kind](task, machine.here())
    header = (
        f"Config that `big-retrieval train --data={request.data}` chose. Edit it, and train again "
        f"with\n\n    big-retrieval train --config={path} --workdir=ANOTHER_FOLDER\n\n"
    )
    header += "\n".join(f"* {message}" for message in task.roles.messages)
    content = config_file(header, sections, workdir)
    durable.write_bytes(path, content.encode("utf-8", "surrogateescape"))
    durable.write_bytes(workdir / MADE_FROM, to_json(_request_values(request)))
    config = load_config(path)
    for section in sections:
        comments = [x[2:] for x in section.split("\n") if x.startswith("# ")]
        log.info(" ".join(comments[1:])) if comments[1:] else None
    before = f", before {' '.join(changed)}" if changed else ""
    steps = count_of(config.total_steps or 0, "step")
    log.info(f"{steps} of {config.batch_size:,} records{before}")
    again = shlex.quote(f"--config={path}")
    log.info(f"config {path}: edit it and train again with {again} --workdir=ANOTHER_FOLDER")
    return path


def load_config(path: Path) -> Config:
    """Loads the config of a config file."""
    spec: Any = importlib.util.spec_from_file_location("written_config", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return configs.load(module.get_config())


def _check_same(request: TrainingRequest, workdir: Path) -> None:
    try:
        saved = json.loads((workdir / MADE_FROM).read_text())
        named = {"data": saved["data"], **saved["flags"], "init": saved["init"] or None}
    except (OSError, ValueError, KeyError, TypeError):
        saved, named = None, {}
    if saved != _request_values(request):
        flags = " ".join(f"--{key}={x}" for key, x in named.items() if x is not None)
        raise UserError(
            f"{workdir} holds another run{flags and f' of {flags}'}. Give another --workdir, or "
            f"the same flags to resume that run, or --config={workdir / CONFIG}."
        )


def _request_values(request: TrainingRequest) -> dict[str, Any]:
    """Returns the request as JSON, equal from any working directory."""
    return json.loads(json.dumps(asdict(replace(request, data=os.path.abspath(request.data)))))


def _init(request: TrainingRequest, roles: Roles) -> Path | None:
    if request.init == "none":
        return None
    if not request.init:
        return machine.text_weights() if roles.kind == "answers" else None
    if not Path(request.init).exists():
        raise UserError(f"--init: folder {request.init!r} does not exist. Check the path.")
    if roles.kind == "clicks":
        raise UserError(
            "--init is for images with captions and for questions with answers. For judged pairs, "
            "set c.init in the written config (docs/INTEROP.md)."
        )
    return Path(request.init).absolute()


def next_commands(workdir: Path) -> list[str]:
    """Returns commands that index the records of a finished run, and search them."""
    config = read_config(workdir)
    source: Any = config.data
    index = Path("indexes") / workdir.name
    documents = [config.fields[name] for name in config.side("document")]
    flags = [f"--run={workdir}", f"--data={_documents(config, workdir)}"]
    if any(field.modality == "image" for field in documents):
        image = getattr(source, "image", "image")
        flags.append(f"--image={image if isinstance(image, str) else image[0]}")
        flags += [] if source.graded else [f"--show={getattr(source, 'text', 'captions')}"]
    where = shlex.quote(f"--index={index}")
    return [
        shlex.join(["big-retrieval", "index", *flags, f"--out={index}"]),
        f'big-retrieval search {where} --query="..."',
        f"big-retrieval demo {shlex.quote(f'--run={workdir}')} {where}",
    ]


def _documents(config: Config, workdir: Path) -> str:
    source: Any = config.data
    if source.graded:
        corpus = Path(source.path, "corpus.jsonl")  # of BEIR's folders
        path = str(corpus) if corpus.is_file() else source.path
        return getattr(source, "documents", "") or path
    eval_sources: list[Any] = [evaluator.data for evaluator in config.evals.values()]
    paths = [Path(x.path) for x in (source, *eval_sources) if x and not x.graded]
    written = Path(os.path.abspath(workdir / FOLDER))
    shown = [workdir / FOLDER / x.name if x.parent == written else x for x in paths]
    return ",".join(map(str, dict.fromkeys(shown)))
