"""Looks at a config's data, writes shards, splits judged pairs, gets published data, lists stores.

    big-retrieval data inspect --config=FILE[:arg] [--source=evals.test] [--limit=1000]
    big-retrieval data convert --config=FILE[:arg] --out=FOLDER [--source=evals.test]
    big-retrieval data split --data.path=FILE --out=FOLDER [--data.queries=FILE ...]
    big-retrieval data get [NAME]
    big-retrieval data check NAME [--data=FOLDER]
    big-retrieval data stores [--delete [--all]]

`inspect` prints the contents of the data and some examples. `convert` writes ArrayRecord shards,
which --config.data.path=FOLDER (source type `pairs`) reads. `split` draws the four-way split of
judged pairs (GCL), given by --config, or by the keys of a source of the type `graded` as flags
--data.KEY. `get` prints where a published data set is, its license and size, and where the configs
look for it; `check` compares a folder with it. `stores` lists the stores that files were read into,
with sizes and last uses; --delete deletes those that are not needed.
"""

from pathlib import Path

from absl import flags

from big_retrieval import cli
from big_retrieval.commands import data_split
from big_retrieval.config import Config, Graded, schema
from big_retrieval.config.checks import check
from big_retrieval.config.sources import Source
from big_retrieval.errors import UserError
from big_retrieval.runtime import locks

WORDS = 2
WITHOUT = ("workdir",)
SOURCE = flags.DEFINE_string("source", "data", "Whose source: data, or evals.NAME")
OUT = flags.DEFINE_string("out", None, "convert, split: the folder to write")
LIMIT = flags.DEFINE_integer("limit", 1000, "inspect: records that are read", lower_bound=1)
SHARD_RECORDS = flags.DEFINE_integer("shard_records", 10_000, "convert: of a shard", lower_bound=1)
DATA = flags.DEFINE_string("data", "", "check: the folder")
DELETE = flags.DEFINE_bool("delete", False, "stores: delete those that are not needed")
ALL = flags.DEFINE_bool("all", False, "stores: with --delete, all of them")


def main(*words: str) -> None:
    """Reads the configuration and does what the word says."""
    actions = {"inspect": inspect, "convert": convert, "split": split}
    word, *names = words or ("",)
    if word == "stores" and not names:
        stores()
        return
    if word == "get" or (word == "check" and names):
        from big_retrieval.data import catalogue

        catalogue.get("".join(names)) if word == "get" else catalogue.check(names[0], DATA.value)
        return
    if word not in actions or names:
        raise UserError(
            "say what to do: big-retrieval data inspect, ... convert, ... split, ... get NAME, "
            "... check NAME, or ... stores."
        )
    if word == "split" and cli.CONFIG.value is None:
        data_split.split(data_split.source_of_flags(), OUT.value)
        return
    config = cli.load_config()
    check(config, trains=False)
    actions[word](config)


def chosen(config: Config) -> Source:
    """The source that --source names.

    Raises:
      UserError: there is none of this name.
    """
    kind, _, name = SOURCE.value.partition(".")
    if SOURCE.value == "data":
        return config.data
    if kind != "evals" or name not in config.evals:
        known = ", ".join(["data", *(f"evals.{each}" for each in sorted(config.evals))])
        raise UserError(f"--source is {SOURCE.value!r}; this config has {known}.")
    return config.evals[name].data


def inspect(config: Config) -> None:
    """Prints the contents of the source and some examples."""
    from big_retrieval.data import inspection
    from big_retrieval.data.build import make_negatives, make_readers, make_source, make_tokenizer
    from big_retrieval.data.duplicates import compared

    source = make_source(chosen(config))
    training = source if SOURCE.value == "data" else make_source(config.data)
    readers = dict(make_readers(config, make_tokenizer(config, training), training))
    readers = inspection.present(source, readers, LIMIT.value)
    negatives = make_negatives(config) if SOURCE.value == "data" else None
    sample = inspection.take(source, readers, LIMIT.value, negatives)
    for line in inspection.describe(source, readers, sample):
        print(line, flush=True)
    for line in inspection.describe_shared(source, compared(config, readers)):
        print(line, flush=True)
    for text in sample.examples:
        print(f"  example   {text[:100]}")


def split(config: Config) -> None:
    """Writes the four-way split of the source."""
    asked = chosen(config)
    if not isinstance(asked, Graded):
        raise UserError(
            f"--source is of the type {asked.type!r}; only judged pairs ('graded') can be split."
        )
    data_split.split(asked, OUT.value)


def convert(config: Config) -> None:
    """Writes the source's records as ArrayRecord shards."""
    if not OUT.value:
        raise UserError("--out is missing: the folder to write the shards to.")
    folder = Path(OUT.value)
    with cli.owning(locks.in_folder(folder), folder):
        _convert(config, folder)


def _convert(config: Config, folder: Path) -> None:
    from big_retrieval.data.build import make_source
    from big_retrieval.data.formats.shards import convert as convert_source

    asked = chosen(config)
    if any(each.graded for each in asked.inside()):
        raise UserError(
            "--source names judged pairs, which shards cannot hold; train from their own files."
        )
    index, damage = convert_source(
        make_source(asked),
        folder,
        shard_records=SHARD_RECORDS.value,
        origin=schema.to_plain(asked),
        max_damaged=config.loader.max_damaged,
    )
    if damage.count:
        print(f"{damage.count:,} damaged records were skipped; {damage.file} names them")
    print(f"{index['records']:,} records in {len(index['shards'])} shards under {folder}")
    print(f"to train on them: --config.data.type=pairs --config.data.path={folder}")


def stores() -> None:
    """Lists the stores, or deletes those that are not needed."""
    from big_retrieval.data.stores.cache import delete_stores, print_stores, stores_folder

    if ALL.value and not DELETE.value:
        raise UserError("--all goes with --delete: give both, or neither to list the stores.")
    if DELETE.value:
        delete_stores(stores_folder(), every=ALL.value)
    else:
        print_stores(stores_folder())
