"""From a path to a run folder with a config file, which is made once."""

import json
import logging
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from big_retrieval.config import Config
from big_retrieval.errors import UserError
from big_retrieval.io import durable
from big_retrieval.io.manifest import to_json
from big_retrieval.own_data import choice, code, machine
from big_retrieval.own_data.beir import beir_task
from big_retrieval.own_data.roles import Roles, Said
from big_retrieval.own_data.sources import FOLDER, table_task

log = logging.getLogger(__name__)
CONFIG, MADE = "config.py", "made_from.json"  # in the run folder
FEW = 100  # records below which a user is warned


@dataclass(frozen=True)
class TrainingRequest:
    """What the command line asks for.

    Attributes:
      data: a file, folder or pattern.
      said: what the columns are.
      init: a folder of published weights, "none", or "": those that are at hand.
    """

    data: str
    said: Said
    init: str = ""


def prepare(asked: TrainingRequest, workdir: Path, changed: Sequence[str] = ()) -> Path:
    """Makes the config file of a run, or finds the one that an earlier start made.

    Args:
      asked: what the command line asks for.
      workdir: the run folder.
      changed: keys of the config that the command line sets; they are said, not written.

    Returns:
      The config file.

    Raises:
      UserError: nothing to train on, columns that cannot be told apart, or a folder that holds
        another run.
    """
    path = workdir / CONFIG
    asked = replace(asked, data=os.path.expanduser(asked.data))
    if (workdir / "checkpoints").is_dir():
        made = _made(workdir)
        if made is None or made["asked"] != _plain(asked):
            was = "" if made is None else f" of {_words(made['asked'])}"
            raise UserError(
                f"{workdir} holds another run{was}: give another --workdir, or the same flags to "
                "go on with that one."
            )
        if made["files"] != stamp(asked.data, workdir):
            log.warning(
                f"{asked.data} has changed since {path} was made: this run goes on with the "
                "records that it had; another --workdir trains on all that is there now"
            )
        log.info(f"goes on with {path}, which was made for {asked.data}")
        return path
    task = beir_task(asked.data, workdir / FOLDER)
    if task is not None and asked.said != Said():
        raise UserError(
            f"{asked.data} is a folder in BEIR's form, whose columns are known: give --data alone, "
            "without flags that name columns."
        )
    task = task or table_task(asked.data, asked.said, workdir)
    roles = task.roles
    if task.records < FEW:
        log.warning(
            f"{task.records:,} records for training are few: this shows that everything works, but "
            "teaches a model little"
        )
    made = choice.choose(replace(task, init=_init(asked, roles)), machine.here())
    about = f"What `big-retrieval train --data={asked.data}` chose; edit it and train again by\n\n"
    about += f"    big-retrieval train --config={path} --workdir=ANOTHER_FOLDER\n\n"
    about += "\n".join(f"* {line}" for line in roles.lines).replace("\\", "/") + "\n"
    code.write(path, made.config, about.replace('"""', "'''"), made.notes)
    durable.write_bytes(
        workdir / MADE,
        to_json({"asked": _plain(asked), "files": stamp(asked.data, workdir)}),
    )
    for line in choice.told(made, changed):
        log.info(line)
    again = shlex.quote(f"--config={path}")
    log.info(f"config {path}: edit it and train again with {again} --workdir=ANOTHER_FOLDER")
    return path


def _init(asked: TrainingRequest, roles: Roles) -> Path | None:
    """The folder of published weights to start from."""
    if asked.init == "none":
        return None
    if asked.init:
        if not Path(asked.init).exists():
            raise UserError(f"--init: there is no folder {asked.init!r}; check the path.")
        if roles.kind == "clicks":
            raise UserError(
                "--init is for images with captions and for questions with answers; for judged "
                "pairs, give the written config c.init (docs/INTEROP.md)."
            )
        return Path(asked.init).absolute()
    return machine.text_weights() if roles.kind == "answers" else None


def stamp(data: str, workdir: Path) -> dict[str, Any]:
    """What tells whether files are others than before: their number, bytes and newest time."""
    from big_retrieval.data.formats.folders import walk
    from big_retrieval.data.formats.open_files import expand

    files: list[Path] = []
    for each in expand(data)[0]:
        files += walk(each.absolute(), workdir) if each.is_dir() else [each]
    files = [file for file in files if not file.name.endswith(".index.npz")]
    stats = [file.stat() for file in files if file.is_file()]
    return {
        "count": len(stats),
        "bytes": sum(each.st_size for each in stats),
        "newest": max((each.st_mtime for each in stats), default=0),
    }


def _plain(asked: TrainingRequest) -> dict[str, Any]:
    """The request as JSON holds it, the same from any folder."""
    whole = replace(asked, data=os.path.abspath(asked.data))
    return json.loads(json.dumps(asdict(whole)))


def _words(asked: dict[str, Any]) -> str:
    said = {key: value for key, value in asked["said"].items() if value is not None}
    flags = {"data": asked["data"], **said, **({"init": asked["init"]} if asked["init"] else {})}
    return " ".join(f"--{key}={value}" for key, value in flags.items())


def _made(workdir: Path) -> dict[str, Any] | None:
    try:
        return json.loads((workdir / MADE).read_text())
    except (OSError, ValueError):
        return None


def next_commands(workdir: Path) -> list[str]:
    """The commands that make an index of the records and search it, for a finished run."""
    from big_retrieval.config import load_saved

    config = load_saved(json.loads((workdir / "config.json").read_text()))
    source: Any = config.data
    index = Path("indexes") / workdir.name
    documents = [config.fields[name] for name in config.side("document")]
    words = [f"--run={workdir}", f"--data={_documents(config, workdir)}"]
    if any(each.modality == "image" for each in documents):
        image = source.image if isinstance(source.image, str) else source.image[0]
        words.append(f"--image={image}")
        words += [] if config.data.graded else [f"--show={source.text}"]
    where = shlex.quote(f"--index={index}")
    return [
        shlex.join(["big-retrieval", "index", *words, f"--out={index}"]),
        f'big-retrieval search {where} --query="..."',
        f"big-retrieval demo {shlex.quote(f'--run={workdir}')} {where}",
    ]


def _documents(config: Config, workdir: Path) -> str:
    """The files of all documents, those of validation and test included."""
    source: Any = config.data
    if source.graded:
        corpus = Path(source.path, "corpus.jsonl")  # of BEIR's folders
        own = str(corpus) if corpus.is_file() else source.path
        return getattr(source, "documents", "") or own
    others = (each.data for each in config.evals.values())
    paths = [Path(each.path) for each in (source, *others) if each and not each.graded]
    written = (workdir / FOLDER).absolute()
    found = [workdir / FOLDER / x.name if x.parent == written else x for x in paths]
    return ",".join(map(str, dict.fromkeys(found)))
