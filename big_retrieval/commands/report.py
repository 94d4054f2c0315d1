"""Writes the report of a run, or prints a table of several.

    big-retrieval report RUN [RUN2] [--out=FILE]
    big-retrieval report --table [--metrics=PATTERN,PATTERN] FOLDER FOLDER ...

With two runs they stand side by side. A table has a row for each folder: a run, what
`big-retrieval evaluate` wrote to, or a sweep's entry with a folder for each seed. Reads nothing but
the folders: no model, no data.
"""

from pathlib import Path

from absl import flags

from big_retrieval import cli
from big_retrieval.errors import UserError
from big_retrieval.report import page
from big_retrieval.report.read import check_run
from big_retrieval.report.table import table
from big_retrieval.runtime import locks

WITHOUT = ("config", "workdir", "plugins")
OUT = flags.DEFINE_string("out", None, "The file; RUN/report.html by default")
TABLE = flags.DEFINE_bool("table", False, "Print one Markdown table of all folders instead")
METRICS = flags.DEFINE_list(
    "metrics", [], "With --table: patterns such as ranking/*/nDCG@10; all evaluators' by default"
)
PAGES = 2  # runs on a page at most
WORDS = 10_000  # folders of a table at most


def main(*folders: str) -> None:
    """Reads one or two run folders and writes the page, or prints a table of any number.

    Args:
      *folders: the run folders.

    Raises:
      UserError: none or the same one twice, or one that holds no run; flags that do not go
        together.
    """
    paths = [Path(folder) for folder in folders]
    if TABLE.value:
        _table(paths)
        return
    if METRICS.value:
        raise UserError("--metrics is for --table: a page shows all metrics; leave it out.")
    if not folders:
        raise UserError("the run folder is missing: big-retrieval report RUN [RUN2].")
    if len(paths) > PAGES:
        raise UserError(f"{folders[PAGES]!r} is no flag; at most {PAGES} such words are taken.")
    if len(paths) == 2 and paths[0].resolve() == paths[1].resolve():
        raise UserError(f"{paths[1]} is given twice; give two runs, or one.")
    out = None if OUT.value is None else Path(OUT.value)
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"--out {out} is a folder or in none that exists; give a file.")
    for path in paths:
        check_run(path)
    out = page.place(*paths) if out is None else out
    with cli.owning(locks.beside(out), out):
        print(f"written to {page.write(*paths, out=out)}")


def _table(paths: list[Path]) -> None:
    if OUT.value is not None:
        raise UserError("--out is for a page: --table prints; leave it out.")
    if not paths:
        raise UserError("the folders are missing: big-retrieval report --table RUN ...")
    print(table(paths, METRICS.value), end="")
