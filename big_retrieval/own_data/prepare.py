"""From a path to a run folder with a config file: looked at, split and chosen."""

import json
import logging
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.config.data import Pairs, Tar
from big_retrieval.config.sources import Source
from big_retrieval.errors import UserError
from big_retrieval.io import durable
from big_retrieval.io.manifest import to_json
from big_retrieval.own_data import choice, code, machine
from big_retrieval.own_data.columns import Column, look
from big_retrieval.own_data.files import DataFiles, FoundData, find
from big_retrieval.own_data.judged import judged_sources
from big_retrieval.own_data.roles import Roles, Said, decide, endings
from big_retrieval.own_data.rows import write_lines
from big_retrieval.own_data.splitting import RecordKeys, keys_of, split

log = logging.getLogger(__name__)
CONFIG, MADE, FOLDER = "config.py", "made_from.json", "data"  # in the run folder
LEAST = 10  # records that a run takes
FEW = 100  # records below which a user is warned
MANY = 50_000  # records from which a user is told that all are read


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


def prepare(asked: TrainingRequest, workdir: Path) -> Path:
    """Makes the config file of a run, or finds the one that an earlier start made.

    Args:
      asked: what the command line asks for.
      workdir: the run folder.

    Returns:
      The config file.

    Raises:
      UserError: nothing to train on, columns that cannot be told apart, or a folder that holds
        another run.
    """
    path = workdir / CONFIG
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
    found = find(asked.data, leave_out=workdir)
    columns = look(found.train.table, found.train.root)
    for line in (_summary(found, asked), *found.notes):
        log.info(line)
    if not columns:
        first = found.train.table.place(0)
        raise UserError(f"{asked.data}: none of the sampled rows can be read, such as {first}.")
    if found.form == "pictures" and "captions" not in columns and asked.said.text is None:
        raise UserError(
            f"{asked.data} holds {counted(len(found.train.table), 'picture')} and no captions: put "
            "a text file beside each (cat.txt beside cat.jpg, a caption a line), give a table of "
            "files and captions, or take the names of the files or of their folders as captions by "
            "--text=name or --text=folder."
        )
    roles = decide(columns, asked.said, Path(asked.data).name or asked.data)
    for line in roles.lines:
        log.info(line)
    here = machine.here()
    made = _choice(found, roles, columns, asked, here, workdir)
    about = f"What `big-retrieval train --data={asked.data}` chose; edit it and train again by\n\n"
    about += f"    big-retrieval train --config={path} --workdir=ANOTHER_FOLDER\n\n"
    about += "\n".join(f"* {line}" for line in roles.lines).replace("\\", "/") + "\n"
    code.write(path, made.config, about.replace('"""', "'''"), made.notes)
    durable.write_bytes(
        workdir / MADE,
        to_json({"asked": _plain(asked), "files": stamp(asked.data, workdir)}),
    )
    for line in choice.told(made):
        log.info(line)
    log.info(
        f"config {path}: edit it and train again with --config={path} --workdir=ANOTHER_FOLDER"
    )
    return path


def _choice(
    found: FoundData, roles: Roles, columns: dict[str, Column], asked: TrainingRequest,
    here: machine.Machine, workdir: Path,
) -> choice.Choice:  # fmt: skip
    """Splits the records and chooses a config for them."""
    folder = workdir / FOLDER
    durable.make_folder(folder)
    if roles.kind == "clicks":
        sources, records, limit = judged_sources(found, roles, columns, folder)
    else:
        sources, records = _sources(found, roles, columns, folder)
        limit = 0.0
    if records < FEW:
        log.warning(
            f"{records:,} records for training are few: this shows that everything works, but "
            "teaches a model little"
        )
    image = columns.get(roles["image"])
    damaged = image.broken / max(1, image.whole + image.broken) if image else 0.0
    task = choice.TrainingTask(
        roles, columns, sources, records, damaged, _init(asked, roles), limit=limit
    )
    return choice.choose(task, here)


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


def _summary(found: FoundData, asked: TrainingRequest) -> str:
    counts = ", ".join(f"{len(each.table):,} for {name}" for name, each in found.splits.items())
    if len(found.splits) == 1:
        counts = counted(len(found.train.table), "record")
    forms = {"table": "a table", "tar": "tar shards", "pictures": "pictures"}
    return f"data {asked.data}: {forms[found.form]}, {counts}"


def _sources(
    found: FoundData, roles: Roles, columns: dict[str, Column], folder: Path
) -> tuple[dict[str, Source], int]:
    """A source for each split; one for validation is split off where none is named."""
    keys = {name: _keys(each, roles, columns) for name, each in found.splits.items()}
    for name, each in keys.items():
        _told(each, name if len(keys) > 1 else "")
    rows = {name: np.array(each.rows, np.int64) for name, each in keys.items()}
    count = len(rows["train"])
    if count < LEAST:
        dropped = sum(keys["train"].dropped.values())
        more = f" ({dropped:,} others are not usable: see above)" if dropped else ""
        raise UserError(
            f"{counted(count, 'usable record')}{more}: training compares records with each other "
            f"and needs at least {LEAST} of them."
        )
    if "validation" not in rows:
        rows["train"], rows["validation"], apart = split(keys["train"])
        if not len(rows["validation"]):
            raise UserError(
                f"all {counted(count, 'record')} share one text, so that none can be told from "
                "another; training needs records that differ."
            )
        log.info(
            f"{len(rows['validation']):,} records are split off for validation, "
            f"{len(rows['train']):,} are trained on: {apart}"
        )
    sources: dict[str, Source] = {}
    for name, chosen in rows.items():
        files = found.splits.get(name, found.train)
        if not len(chosen):
            raise UserError(f"none of the records for {name} is usable; correct the files.")
        sources[name] = _source(name, files, chosen, roles, columns, folder)
    return sources, len(rows["train"])


def _keys(files: DataFiles, roles: Roles, columns: dict[str, Column]) -> RecordKeys:
    if len(files.table) > MANY:
        log.info(f"reading all {len(files.table):,} records once, to keep copies apart ...")
    texts = [roles[role] for role in ("text", "query", "document") if roles[role]]
    image = endings(columns) if files_are_tars(files) else (roles["image"],)
    root = columns[roles["image"]].root if roles["image"] else files.root
    return keys_of(files.table, image if roles["image"] else (), texts, root)


def files_are_tars(files: DataFiles) -> bool:
    """Whether the rows are samples of tar shards."""
    return files.pattern.endswith(".tar")


def counted(count: int, what: str) -> str:
    """A number with what it counts, such as "1 record" or "2 records"."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def _told(keys: RecordKeys, split_name: str) -> None:
    for why, count in keys.dropped.items():
        of = f" for {split_name}" if split_name else ""
        log.info(f"{count:,} records{of} {why}: left out")


def _source(
    name: str, files: DataFiles, rows: np.ndarray, roles: Roles, columns: dict[str, Column],
    folder: Path,
) -> Source:  # fmt: skip
    """The source of some rows, which are written where no source reads the files as they are."""
    text = roles["text"] or roles["document"]
    if files_are_tars(files):
        image = tuple(dict.fromkeys((roles["image"], *endings(columns))))
        return Tar(path=files.pattern, image=image, text=text, rows=_write_rows(folder, name, rows))
    root = columns[roles["image"]].root if roles["image"] else files.root
    if files.pattern and root == files.root:
        return Pairs(
            path=files.pattern, image=roles["image"], text=text,
            rows=_write_rows(folder, name, rows),
        )  # fmt: skip
    path = folder / f"{name}.jsonl"
    write_lines(path, files.table, rows, roles["image"], root)
    return Pairs(path=str(path.absolute()), image=roles["image"], text=text)


def _write_rows(folder: Path, name: str, rows: np.ndarray) -> str:
    """Writes the numbers of rows; the path of their file."""
    path = folder / f"{name}_rows.npy"
    np.save(path, rows)
    return str(path.absolute())


def stamp(data: str, workdir: Path) -> dict[str, Any]:
    """What tells whether files are others than before: their number, bytes and newest time."""
    from big_retrieval.data.formats.open_files import expand
    from big_retrieval.own_data.files import walk

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
    return json.loads(json.dumps(asdict(asked)))


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
    words = [f"--run={workdir}", f"--data={_documents(source, workdir)}"]
    if any(each.modality == "image" for each in documents):
        image = source.image if isinstance(source.image, str) else source.image[0]
        words.append(f"--image={shlex.quote(image)}")
        words += [] if config.data.graded else [f"--show={shlex.quote(source.text)}"]
    lines = [f"big-retrieval index {' '.join(words)} --out={index}"]
    lines.append(f'big-retrieval search --index={index} --query="..."')
    lines.append(f"big-retrieval demo --run={workdir} --index={index}")
    return lines


def _documents(source: Any, workdir: Path) -> str:
    """The files of all documents, those of validation included."""
    if source.graded:
        return shlex.quote(source.documents or source.path)
    if getattr(source, "rows", ""):
        return shlex.quote(source.path)
    files = sorted((workdir / FOLDER).glob("*.jsonl"))
    return ",".join(shlex.quote(str(file)) for file in files) or shlex.quote(source.path)
