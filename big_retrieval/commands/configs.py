"""Lists the configs that come with the package, or hyper-parameters of some as a table.

    big-retrieval configs
    big-retrieval configs NAME[:arg] [NAME[:arg]]

`--config=NAME` uses one of them from any folder, `--config=NAME:runlocal` its small form for a
first try. The files are a good start for your own config.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from big_retrieval.cli import shipped
from big_retrieval.cli.option_groups import CommonOptions
from big_retrieval.cli.options import Flag
from big_retrieval.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ConfigsOptions(CommonOptions):
    names: Annotated[tuple[str, ...], Flag(words=4)] = ()


def main(options: ConfigsOptions) -> None:
    if options.names:
        _compare(options.names)
        return
    files = shipped.configs()
    if not files:
        raise UserError("This installation has no configs. Install big_retrieval again with pip.")
    width = max(map(len, files))
    for name, file in files.items():
        print(f"{name:<{width}}  {shipped.summary(file)}")
    print(f"\nconfigs         {shipped.folder('configs')}")
    print(f"launch scripts  {shipped.folder('launch')}")


def _compare(names: Sequence[str]) -> None:
    from big_retrieval import config as configs
    from big_retrieval.cli.config_file import run_config_file
    from big_retrieval.report.hyper_parameters import hyper_parameters

    columns = [hyper_parameters(configs.load(run_config_file(name))) for name in names]
    rows = [("", *names), *((key, *(column[key] for column in columns)) for key in columns[0])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
