"""Writes the report of a run: `python -m big_retrieval.report RUN [RUN2] [--out=FILE]`.

With two runs they stand side by side. Reads nothing but the run folders: no model, no data.
"""

from pathlib import Path

from absl import flags

from big_retrieval import cli
from big_retrieval.errors import UserError
from big_retrieval.report import page

OUT = flags.DEFINE_string("out", None, "The file; RUN/report.html by default")


def main(*folders: str) -> None:
    """Reads one or two run folders and writes the page.

    Args:
      *folders: the run folders.

    Raises:
      UserError: none or the same one twice, or one that holds no run.
    """
    if cli.CONFIG.value is not None or cli.WORKDIR.value is not None:
        raise UserError("report takes no --config and no --workdir: give the run folder alone.")
    if not folders:
        raise UserError("the run folder is missing: python -m big_retrieval.report RUN [RUN2].")
    paths = [Path(folder) for folder in folders]
    if len(paths) == 2 and paths[0].resolve() == paths[1].resolve():
        raise UserError(f"{paths[1]} is given twice; give two runs, or one.")
    out = None if OUT.value is None else Path(OUT.value)
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"--out {out} is a folder or in none that exists; give a file.")
    print(f"written to {page.write(*paths, out=out)}")


if __name__ == "__main__":
    cli.run(main, words=2)
