"""Lists the configs that come with the package, with a sentence each.

    big-retrieval configs

`--config=NAME` uses one of them from any folder, `--config=NAME:runlocal` its small form for a
first try. The files are a good start for a config of one's own.
"""

from big_retrieval.config import shipped
from big_retrieval.errors import UserError

WITHOUT = ("config", "workdir", "wait", "plugins")


def main() -> None:
    """Prints the table and the folders.

    Raises:
      UserError: the package was installed without them.
    """
    found = shipped.configs()
    if not found:
        raise UserError("this installation has no configs: install big_retrieval again with pip.")
    width = max(map(len, found))
    for name, file in found.items():
        print(f"{name:<{width}}  {shipped.summary(file)}")
    print(f"\nconfigs         {shipped.folder('configs')}")
    print(f"launch scripts  {shipped.folder('launch')}")
