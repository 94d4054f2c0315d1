"""Builds an index of documents, which `big-retrieval search` searches.

    big-retrieval index --run=RUN --data=FILES --out=FOLDER
    big-retrieval index --run=RUN --data=FILES --out=FOLDER --binary
    big-retrieval index --run=RUN --data=FILES --out=FOLDER --format=lucene
    big-retrieval index --run=RUN --data=FILES --out=FOLDER --part=2/4

FILES are JSONL, CSV, TSV, Parquet, npz or shards, as for training, or a folder of pictures; several
are separated by commas, or written as a pattern or a range {00..99}. Lexical fields make an
inverted index, all others a dense one. --binary indexes the words of the documents, without running
the model. Other formats are for other tools: lucene (JSON lines for Anserini) and csr (scipy) take
lexical documents, npz (numpy) takes dense documents, qdrant takes both.

With --part, several processes of any hosts that see the same FOLDER build one index. The process
that finishes the last part joins all parts. Repeat a command that was stopped to resume it.
"""

import logging
from dataclasses import dataclass

from big_retrieval import cli
from big_retrieval.cli.option_groups import OutputOptions, PluginOptions
from big_retrieval.cli.options import select
from big_retrieval.errors import UserError
from big_retrieval.retrieval.index_options import IndexOptions
from big_retrieval.runtime import locks

log = logging.getLogger(__name__)
LOG = True


@dataclass(frozen=True, kw_only=True)
class IndexCommandOptions(IndexOptions, OutputOptions, PluginOptions):
    part: str = ""  # Part of the index to build, such as 2/4; several processes build one part each


def main(options: IndexCommandOptions) -> None:
    if options.quantise is not None and (options.format != "lucene" or options.quantise <= 0):
        raise UserError("--quantise must be above 0 and needs --format=lucene.")
    if options.part:
        _build_part(options)
        return
    with options.owning_file(options.out):
        from big_retrieval.retrieval.build_index import make

        make(select(IndexOptions, options))


def _build_part(options: IndexCommandOptions) -> None:
    """Builds a part of the index, and the index if this is the last part."""
    from big_retrieval.retrieval import parts

    index, out = select(IndexOptions, options), options.out
    part = parts.IndexPart.parse(options.part)
    folder = part.folder(out)
    with options.owning_file(folder, "--part"):
        missing = parts.make_part(index, part)
    if missing:
        names = ", ".join(map(str, missing))
        log.info(f"missing parts of {out}: {names}; the last one to finish joins all")
        log.info(f"for the next part, repeat this command with --part={missing[0]}")
        return
    # A process that waits here takes over if the one that joins is killed.
    with cli.owning(locks.beside(out), out, wait=True):
        parts.join_parts(index, part)
