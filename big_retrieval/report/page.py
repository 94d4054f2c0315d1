"""report.html: a pure function of the files in one or two run folders."""

from collections.abc import Sequence
from pathlib import Path

from big_retrieval.io.durable import write_bytes
from big_retrieval.report import curves, examples, results, settings, verdict
from big_retrieval.report.html import Html, document, join, tag
from big_retrieval.report.read import RunFiles, read_run

MOST_BYTES = 3_000_000
LIMITS = (None, 3, 2, 1, 0)  # examples of each kind, until the page is small enough

NAME = "report.html"


def write(folder: Path, second: Path | None = None, out: Path | None = None) -> Path:
    """Writes the report of a run, or of two side by side.

    Args:
      folder: of the run.
      second: of another run.
      out: the file; None: report.html in the run's folder, with the second run's name in it where
        there are two.

    Returns:
      The file.

    Raises:
      UserError: a folder is none of a run.
    """
    folders = [folder] if second is None else [folder, second]
    out = place(folder, second) if out is None else out
    runs = [read_run(path) for path in folders]
    write_bytes(out, build(runs).encode())
    return out


def place(folder: Path, second: Path | None = None) -> Path:
    """Where a report goes unless the user says otherwise; the arguments are those of `write`."""
    return folder / (NAME if second is None else f"report-vs-{second.resolve().name}.html")


def build(runs: Sequence[RunFiles]) -> str:
    """The page; fewer examples where it would be too large.

    Args:
      runs: one or two.
    """
    _tell_apart(runs)
    page = ""
    for limit in LIMITS:
        page = _page(runs, limit)
        if len(page.encode()) <= MOST_BYTES:
            break
    return page


def _tell_apart(runs: Sequence[RunFiles]) -> None:
    """Gives two runs of the same name the names of their parents too."""
    if len(runs) == 2 and runs[0].name == runs[1].name:
        for run in runs:
            path = run.folder.resolve()
            run.name = f"{path.parent.name}/{path.name}"


def _page(runs: Sequence[RunFiles], limit: int | None) -> str:
    parts = {
        "Summary": verdict.section(runs),
        "Results": results.section(runs),
        "Curves": curves.section(runs),
        "Examples": examples.section(runs, limit),
        "Data": settings.data(runs),
        "Configuration": settings.configuration(runs),
        "Environment": settings.environment(runs),
    }
    problems = [
        f"{run.name}: {problem}" if len(runs) == 2 else problem
        for run in runs
        for problem in run.problems
    ]
    if problems:
        parts["Unreadable files"] = tag("ul", (tag("li", problem) for problem in problems))
    title = " and ".join(run.name for run in runs)
    links = (tag("li", tag("a", name, href=f"#{_anchor(name)}")) for name in parts)
    return document(
        f"{title} · report",
        tag("header", tag("h1", _heading(runs)), tag("nav", tag("ul", links))),
        tag("main", (_section(name, part) for name, part in parts.items())),
    )


def _heading(runs: Sequence[RunFiles]) -> list[Html]:
    if len(runs) == 1:
        return [tag("bdi", runs[0].name)]
    names = [join([results.chip(i), tag("bdi", run.name)]) for i, run in enumerate(runs)]
    return [tag("span", name, class_="one") for name in names]


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _section(name: str, part: Html) -> Html:
    return tag("section", tag("h2", name), part, id=_anchor(name))
