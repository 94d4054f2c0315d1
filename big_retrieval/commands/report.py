"""Writes the report of a run, or prints a table of several runs.

    big-retrieval report RUN [RUN2] [--out=FILE]
    big-retrieval report --table [--metrics=PATTERN,PATTERN] FOLDER FOLDER ...

The page of two runs shows them side by side. A table has a row for each folder: a run, a folder
that `big-retrieval evaluate` wrote, or a sweep's entry with a folder for each seed. The command
reads only the folders: no model, no data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from big_retrieval.cli.option_groups import OutputOptions
from big_retrieval.cli.options import Flag
from big_retrieval.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ReportOptions(OutputOptions):
    folders: Annotated[tuple[str, ...], Flag(words=10_000)] = ()
    out: Path | None = None  # File to write; RUN/report.html by default
    table: bool = False  # Print one Markdown table of all folders instead
    # Patterns such as ranking/*/nDCG@10; all evaluators' metrics by default
    metrics: Annotated[tuple[str, ...], Flag(needs="table")] = ()


def main(options: ReportOptions) -> None:
    paths = [Path(folder) for folder in options.folders]
    if options.table:
        _print_table(paths, options)
        return
    if not paths:
        raise UserError("The run folder is missing: big-retrieval report RUN [RUN2].")
    if len(paths) > 2:
        raise UserError(f"{len(paths)} runs are given; a page shows at most two. Add --table.")
    if len(paths) == 2 and paths[0].resolve() == paths[1].resolve():
        raise UserError(f"{paths[1]} is given twice. Use two runs, or one.")
    out = options.out
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"--out {out} is not a file in an existing folder. Choose another file.")
    from big_retrieval.report import page
    from big_retrieval.report.read import check_run

    for path in paths:
        check_run(path)
    out = page.place(*paths) if out is None else out
    with options.owning_file(out):
        print(f"written to {page.write_report(*paths, out=out)}")


def _print_table(paths: Sequence[Path], options: ReportOptions) -> None:
    from big_retrieval.report.table import markdown_table

    if options.out is not None:
        raise UserError("--out is for a page, but --table prints. Remove one of them.")
    if not paths:
        raise UserError("The folders are missing: big-retrieval report --table RUN ...")
    print(markdown_table(paths, options.metrics), end="")
