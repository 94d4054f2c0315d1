"""report.html: a pure function of the files in one or two run folders."""

import functools
from collections.abc import Sequence
from pathlib import Path

from big_retrieval.io.durable import write_bytes
from big_retrieval.report import curves, examples, results, settings, verdict
from big_retrieval.report.html import Html, document, join_html, tag
from big_retrieval.report.read import RunFiles, read_run

MOST_BYTES = 3_000_000
LIMITS = (None, 3, 2, 1, 0)  # examples of each kind, until the page is small enough
NAME = "report.html"


def write_report(folder: Path, second: Path | None = None, out: Path | None = None) -> Path:
    """Writes the report of one run or of two side by side to `out`, and returns the path.

    Raises:
      UserError: a folder is not the folder of a run, or a file is damaged.
    """
    folders = [folder] if second is None else [folder, second]
    out = place(folder, second) if out is None else out
    write_bytes(out, build([read_run(path) for path in folders]).encode())
    return out


def place(folder: Path, second: Path | None = None) -> Path:
    """Returns the default path of a report, in the folder of the first run."""
    return folder / (NAME if second is None else f"report-vs-{second.resolve().name}.html")


def build(runs: Sequence[RunFiles]) -> str:
    """Builds the page of one or two runs, with fewer examples if it would be too large."""
    if len(runs) == 2 and runs[0].name == runs[1].name:
        for run in runs:
            path = run.folder.resolve()
            run.name = f"{path.parent.name}/{path.name}"
    pages = (_page(runs, limit) for limit in LIMITS)
    return next((page for page in pages if len(page.encode()) <= MOST_BYTES), _page(runs, 0))


def _page(runs: Sequence[RunFiles], limit: int | None) -> str:
    sections = {
        "Summary": verdict.verdict_section,
        "Results": results.results_section,
        "Curves": curves.curves_section,
        "Examples": functools.partial(examples.examples_section, limit=limit),
        "Data": settings.data,
        "Configuration": settings.configuration,
        "Environment": settings.environment,
    }
    title = " and ".join(run.name for run in runs)
    links = (tag("li", tag("a", name, href=f"#{name.lower()}")) for name in sections)
    body = (
        tag("section", tag("h2", name), build_section(runs), id=name.lower())
        for name, build_section in sections.items()
    )
    header = tag("header", tag("h1", _heading(runs)), tag("nav", tag("ul", links)))
    return document(f"{title} · report", header, tag("main", body))


def _heading(runs: Sequence[RunFiles]) -> list[Html]:
    if len(runs) == 1:
        return [tag("bdi", runs[0].name)]
    names = [join_html([results.chip(i), tag("bdi", run.name)]) for i, run in enumerate(runs)]
    return [tag("span", name, class_="one") for name in names]
