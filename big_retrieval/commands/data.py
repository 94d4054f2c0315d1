"""Looks at a config's data, writes shards, splits judged pairs, gets published data, lists stores.

    big-retrieval data inspect --config=FILE[:arg] [--source=evals.test] [--limit=1000]
    big-retrieval data convert --config=FILE[:arg] --out=FOLDER [--source=evals.test]
    big-retrieval data split --data.path=FILE --out=FOLDER [--data.queries=FILE ...]
    big-retrieval data get [NAME]
    big-retrieval data check NAME [--data=FOLDER]
    big-retrieval data stores [--delete [--all]]

`inspect` prints the contents of the data and some examples. `convert` writes ArrayRecord shards for
--config.data.path (source type `pairs`). `split` draws the four-way split of judged pairs (GCL)
from --config, or from flags --data.KEY, the keys of the source type `graded`. `get` prints the
address, license and size of a published data set, and the folder that configs expect; `check`
compares a folder with it. `stores` lists the stores of files that were read; --delete deletes the
stores that are not needed.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from big_retrieval.cli.option_groups import CommonOptions, ConfigOptions
from big_retrieval.cli.options import AtLeast1, Flag, parse, select
from big_retrieval.data.judged.split_options import SplitOptions
from big_retrieval.errors import UserError
from big_retrieval.runtime.messages import count_of

if TYPE_CHECKING:
    from big_retrieval.config import Config, Graded
    from big_retrieval.config.sources import Source


@dataclass(frozen=True, kw_only=True)
class SourceOptions(ConfigOptions):
    source: str = "data"  # Source to read: data, or evals.NAME

    def read_source(self) -> "tuple[Config, Source]":
        """Returns the config and the source that --source names."""
        from big_retrieval.config.checks import check

        config = self.load_config()
        check(config, trains=False)
        group, _, name = self.source.partition(".")
        if self.source == "data":
            return config, config.data
        if group != "evals" or name not in config.evals:
            names = ", ".join(["data", *(f"evals.{name}" for name in sorted(config.evals))])
            raise UserError(f"--source is {self.source!r}; the config has: {names}.")
        return config, config.evals[name].data


@dataclass(frozen=True, kw_only=True)
class InspectOptions(SourceOptions):
    limit: AtLeast1 = 1000  # Number of records to read


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(SourceOptions):
    out: Path  # Folder of the shards
    shard_records: AtLeast1 = 10_000  # Records per shard


@dataclass(frozen=True, kw_only=True)
class SplitCommandOptions(SplitOptions, SourceOptions):
    out: Path  # Folder of the split
    # Without --config: key of judged pairs, such as path, queries, documents, score or where
    data_keys: Annotated[tuple[str, ...], Flag(keys="data")] = ()


@dataclass(frozen=True, kw_only=True)
class GetOptions(CommonOptions):
    names: Annotated[tuple[str, ...], Flag(words=1)] = ()


@dataclass(frozen=True, kw_only=True)
class CheckOptions(GetOptions):
    data: str = ""  # Folder of the data set


@dataclass(frozen=True, kw_only=True)
class StoresOptions(CommonOptions):
    delete: bool = False  # Delete the stores that are not needed
    all: Annotated[bool, Flag(needs="delete")] = False  # Delete all stores


def inspect(options: InspectOptions) -> None:
    from big_retrieval.data import inspection
    from big_retrieval.data.build import make_negatives, make_readers, make_source, make_tokenizer
    from big_retrieval.data.duplicates import compared_readers

    config, source_config = options.read_source()
    source, is_training = make_source(source_config), options.source == "data"
    training = source if is_training else make_source(config.data)
    readers = dict(make_readers(config, make_tokenizer(config, training), training))
    readers = inspection.available_fields(source, readers, options.limit)
    negatives = make_negatives(config) if is_training else None
    sample = inspection.sample_records(source, readers, options.limit, negatives)
    for line in inspection.format_inspection(source, readers, sample):
        print(line, flush=True)
    for line in inspection.format_shared(source, compared_readers(config, readers)):
        print(line, flush=True)
    for text in sample.examples:
        print(f"  example   {text[:100]}")


def convert(options: ConvertOptions) -> None:
    from big_retrieval.config import schema

    config, source = options.read_source()
    folder = options.out
    with options.owning_folder(folder):
        from big_retrieval.data.build import make_source
        from big_retrieval.data.formats.shards import convert as convert_source

        if any(part.graded for part in source.inside()):
            raise UserError("Shards cannot hold judged pairs (--source). Train from their files.")
        index, damage = convert_source(
            make_source(source),
            folder,
            shard_records=options.shard_records,
            origin=schema.to_plain(source),
            max_damaged=config.loader.max_damaged,
        )
        if damage.count:
            print(f"skipped: {count_of(damage.count, 'damaged record')}; see {damage.file}")
        shards = count_of(len(index["shards"]), "shard")
        print(f"{count_of(index['records'], 'record')} in {shards} under {folder}")
        print(f"to train on them: --config.data.type=pairs --config.data.path={folder}")


def split(options: SplitCommandOptions) -> None:
    from big_retrieval.data.judged.split_files import format_summary, split_files

    for name in ("query_share", "document_share", "dev_share"):
        if not 0 < getattr(options, name) < 1:
            raise UserError(
                f"--{name} is {getattr(options, name)}; it must be above 0 and below 1."
            )
    source, folder = _judged_pairs(options), options.out
    with options.owning_folder(folder):
        summary = split_files(source.build(), source, select(SplitOptions, options), folder)
    for line in format_summary(summary):
        print(line)


def _judged_pairs(options: SplitCommandOptions) -> "Graded":
    """Returns the source of --config, or of the flags --data.KEY."""
    from big_retrieval.config.ranges import out_of_range
    from big_retrieval.data.judged.open_graded import Graded

    if options.config is not None:
        _, source = options.read_source()
        if not isinstance(source, Graded):
            raise UserError(f"--source has the type {source.type!r}; split needs 'graded'.")
        return source
    source = parse(Graded, options.data_keys, prefix="data.", command="data split")
    if not source.path:
        raise UserError("--data.path is missing: the file of judged pairs. Or use --config.")
    for message in (*out_of_range(source, "--data"), *source.check_columns("--data")):
        raise UserError(message)
    return source


def get(options: GetOptions) -> None:
    from big_retrieval.data import catalogue

    catalogue.get("".join(options.names))


def check(options: CheckOptions) -> None:
    from big_retrieval.data import catalogue

    if not options.names:
        raise UserError("The name is missing: big-retrieval data check NAME [--data=FOLDER].")
    catalogue.check(options.names[0], options.data)


def stores(options: StoresOptions) -> None:
    from big_retrieval.data.stores.cache import delete_stores, print_stores, stores_folder

    if options.delete:
        delete_stores(stores_folder(), every=options.all)
    else:
        print_stores(stores_folder())


ACTIONS = {
    "inspect": inspect,
    "convert": convert,
    "split": split,
    "get": get,
    "check": check,
    "stores": stores,
}
