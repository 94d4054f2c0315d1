"""Looks at a config's data, writes shards, splits judged pairs, gets published data, lists stores.

    big-retrieval data inspect --config=FILE[:arg] [--source=evals.test] [--limit=1000]
    big-retrieval data convert --config=FILE[:arg] --out=FOLDER [--source=evals.test]
    big-retrieval data split --data.path=FILE --out=FOLDER [--data.queries=FILE ...]
    big-retrieval data regions --data=FILE.tsv[,FILE.tsv] --out=FOLDER
    big-retrieval data regions --data=FOLDER --boxes=FOLDER --sizes=FILE[,FILE] --out=FOLDER
    big-retrieval data get [NAME]
    big-retrieval data check NAME [--data=FOLDER]
    big-retrieval data stores [--delete [--all]]

`inspect` prints the contents of the data and how fast they are read, and draws some examples.
`regions` makes memory-mapped files of published features of image regions. `convert` writes
ArrayRecord shards, which --config.data.path=FOLDER (source type `pairs`) reads. `split` draws the
four-way split of judged pairs (GCL), given by --config, or by the keys of a source of the type
`graded` as flags --data.KEY. `get` prints where a published data set is, its license and size, and
where the configs look for it; `check` compares a folder with it. `stores` lists the stores that
files were read into, with sizes and last uses; --delete deletes those that are not needed.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from big_retrieval.cli.option_groups import (
    CommonOptions,
    ConfigOptions,
    OutputOptions,
    default_folder,
)
from big_retrieval.cli.options import AtLeast1, Flag, parse, select
from big_retrieval.data.judged.split_options import SplitOptions
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.config import Config, Graded
    from big_retrieval.config.sources import Source


@dataclass(frozen=True, kw_only=True)
class SourceOptions(ConfigOptions):
    """Options of actions that read a source of a config."""

    source: str = "data"  # Source to read: data, or evals.NAME

    def read_source(self) -> "tuple[Config, Source]":
        """Returns the config and the source that --source names.

        Raises:
          UserError: there is no such source.
        """
        from big_retrieval.config.checks import check

        config = self.load_config()
        check(config, trains=False)
        kind, _, name = self.source.partition(".")
        if self.source == "data":
            return config, config.data
        if kind != "evals" or name not in config.evals:
            known = ", ".join(["data", *(f"evals.{name}" for name in sorted(config.evals))])
            raise UserError(f"--source is {self.source!r}; this config has {known}.")
        return config, config.evals[name].data


@dataclass(frozen=True, kw_only=True)
class InspectOptions(SourceOptions):
    """Options of `data inspect`."""

    limit: AtLeast1 = 1000  # Number of records to read
    seconds: float = 5.0  # Time for measuring the speed; 0 disables
    out: Path | None = None  # Picture of examples; inspect.png in the run folder by default


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(SourceOptions):
    """Options of `data convert`."""

    out: Path  # Folder of the shards
    shard_records: AtLeast1 = 10_000  # Records per shard


@dataclass(frozen=True, kw_only=True)
class SplitCommandOptions(SplitOptions, SourceOptions):
    """Options of `data split`."""

    out: Path  # Folder of the split
    # Without --config: key of judged pairs, such as path, queries, documents, score or where
    data_keys: Annotated[tuple[str, ...], Flag(keys="data")] = ()


@dataclass(frozen=True, kw_only=True)
class RegionOptions(OutputOptions):
    """Options of `data regions`."""

    data: tuple[str, ...]  # TSV files, or a folder of <id>.npz
    out: Path  # Folder to write
    boxes: Path | None = None  # Folder of <id>.npy, for a folder of <id>.npz
    sizes: tuple[str, ...] = ()  # COCO's files with the images' sizes, for folders


@dataclass(frozen=True, kw_only=True)
class GetOptions(CommonOptions):
    """Options of `data get`."""

    names: Annotated[tuple[str, ...], Flag(words=1)] = ()


@dataclass(frozen=True, kw_only=True)
class CheckOptions(GetOptions):
    """Options of `data check`."""

    data: str = ""  # Folder of the data set


@dataclass(frozen=True, kw_only=True)
class StoresOptions(CommonOptions):
    """Options of `data stores`."""

    delete: bool = False  # Delete the stores that are not needed
    all: Annotated[bool, Flag(needs="delete")] = False  # Delete all stores


def inspect(options: InspectOptions) -> None:
    """Prints the contents of the source and some examples."""
    from big_retrieval.data import inspection
    from big_retrieval.data.build import make_negatives, make_readers, make_source, make_tokenizer
    from big_retrieval.data.duplicates import compared

    config, part = options.read_source()
    source, is_training = make_source(part), options.source == "data"
    training = source if is_training else make_source(config.data)
    readers = dict(make_readers(config, make_tokenizer(config, training), training))
    readers = inspection.present(source, readers, options.limit)
    negatives = make_negatives(config) if is_training else None
    sample = inspection.take(source, readers, options.limit, negatives)
    for line in inspection.describe(source, readers, sample):
        print(line, flush=True)
    for line in inspection.describe_shared(source, compared(config, readers)):
        print(line, flush=True)
    for _, text in sample.shown[:5]:
        print(f"  example   {text[:100]}")
    if options.seconds > 0 and sum(sample.damaged.values()) < sample.read:
        print(inspection.throughput(config, source, readers, options.seconds), flush=True)
    picture = options.out or default_folder(options.config or "") / "inspect.png"
    with options.owning_file(picture):
        inspection.draw(sample, picture)
    print(f"picture     {picture}")


def convert(options: ConvertOptions) -> None:
    """Writes the source's records as ArrayRecord shards."""
    from big_retrieval.config import schema

    config, source = options.read_source()
    folder = options.out
    with options.owning_folder(folder):
        from big_retrieval.data.build import make_source
        from big_retrieval.data.formats.shards import convert as convert_source

        if any(part.graded for part in source.inside()):
            raise UserError(
                "--source names judged pairs, which shards cannot hold; train from their own files."
            )
        index, damage = convert_source(
            make_source(source),
            folder,
            shard_records=options.shard_records,
            origin=schema.to_plain(source),
            max_damaged=config.loader.max_damaged,
        )
        if damage.count:
            print(f"{damage.count:,} damaged records were skipped; {damage.file} names them")
        print(f"{index['records']:,} records in {len(index['shards'])} shards under {folder}")
        print(f"to train on them: --config.data.type=pairs --config.data.path={folder}")


def split(options: SplitCommandOptions) -> None:
    """Writes the four-way split of judged pairs."""
    from big_retrieval.data.judged.split_files import describe, split_files

    for name in ("query_share", "document_share", "dev_share"):
        if not 0 < getattr(options, name) < 1:
            raise UserError(
                f"--{name} is {getattr(options, name)}; it must be above 0 and below 1."
            )
    source, folder = _judged_pairs(options), options.out
    with options.owning_folder(folder):
        summary = split_files(source.build(), source, select(SplitOptions, options), folder)
    for line in describe(summary):
        print(line)


def _judged_pairs(options: SplitCommandOptions) -> "Graded":
    """Returns the source of --config, or of the flags --data.KEY.

    Raises:
      UserError: no path, keys that do not go together, or another type of source.
    """
    from big_retrieval.config.ranges import out_of_range
    from big_retrieval.data.judged.open_graded import Graded

    if options.config is not None:
        _, source = options.read_source()
        if not isinstance(source, Graded):
            raise UserError(
                f"--source is of the type {source.type!r}; only judged pairs ('graded') can be "
                "split."
            )
        return source
    source = parse(Graded, options.data_keys, prefix="data.", command="data split")
    if not source.path:
        raise UserError(
            "--data.path is missing: the file of the pairs (or give --config, whose config.data "
            "has judged pairs)."
        )
    for message in (*out_of_range(source, "--data"), *source.check_columns("--data")):
        raise UserError(message)
    return source


def regions(options: RegionOptions) -> None:
    """Converts published features of regions into memory-mapped files.

    Raises:
      UserError: flags that do not go together, or files that are missing or damaged.
    """
    from big_retrieval.data.formats.region_files import folder_regions, tsv_regions, write_folder

    paths, sizes, folder = [*map(Path, options.data)], [*map(Path, options.sizes)], options.out
    for path in (*paths, *sizes, *([options.boxes] if options.boxes else ())):
        if not path.exists():
            raise UserError(f"{path} is not on this machine: check the path.")
    if paths[0].is_dir():
        if len(paths) > 1 or options.boxes is None or not sizes:
            raise UserError(
                "--data is a folder of <id>.npz: name one, with --boxes (the folder of <id>.npy) "
                "and --sizes (COCO's files of captions, with the width and height of each image)."
            )
        found = folder_regions(paths[0], options.boxes, sizes)
        about = sum(1 for _ in paths[0].glob("*.npz"))
    else:
        found = itertools.chain.from_iterable(map(tsv_regions, paths))
        about = sum(map(_lines, paths))
    with options.owning_folder(folder):
        count, again = write_folder(found, folder, about)
    if again:
        print(f"{again:,} images occur a second time, and were skipped")
    print(f"{count:,} images under {folder}")
    print(f"to train on them: --config.data.type=karpathy --config.data.regions={folder}")


def _lines(path: Path) -> int:
    """Returns an estimate of a file's number of lines, from the length of the first one."""
    with path.open("rb") as file:
        first = len(file.readline())
    return path.stat().st_size // max(1, first)


def get(options: GetOptions) -> None:
    """Prints where a published data set is, or lists all of them."""
    from big_retrieval.data.catalogue import tell

    tell.get("".join(options.names))


def check(options: CheckOptions) -> None:
    """Compares a folder with a published data set."""
    from big_retrieval.data.catalogue import tell

    if not options.names:
        raise UserError("say what to check: big-retrieval data check NAME [--data=FOLDER].")
    tell.check(options.names[0], options.data)


def stores(options: StoresOptions) -> None:
    """Lists the stores, or deletes those that are not needed."""
    from big_retrieval.data.stores.cache import delete_stores, print_stores, stores_folder

    if options.delete:
        delete_stores(stores_folder(), every=options.all)
    else:
        print_stores(stores_folder())


ACTIONS = {
    "inspect": inspect,
    "convert": convert,
    "split": split,
    "regions": regions,
    "get": get,
    "check": check,
    "stores": stores,
}
