"""What `big-retrieval data get` and `data check` print."""

import difflib
from pathlib import Path

from big_retrieval.data.catalogue import CATALOGUE, DataSet
from big_retrieval.data.catalogue.complete import compare
from big_retrieval.errors import UserError


def get(name: str) -> None:
    """Prints what to fetch for a data set and where to put it; without a name, all names.

    Raises:
      UserError: there is no data set of this name.
    """
    if not name:
        width = max(map(len, CATALOGUE))
        for each, found in CATALOGUE.items():
            print(f"{each:<{width}}  {found.title}")
        print("big-retrieval data get NAME says where one of them is, and where it has to be put")
        return
    found = _named(name)
    print(found.title)
    print(f"license   {found.license}")
    print(f"size      {found.size}")
    for each in found.fetch:
        print(f"fetch     {each.what}: {each.address}" + (f" (MD5 {each.md5})" if each.md5 else ""))
    for step in found.steps:
        print(f"then      {step}")
    print(f"into      {found.place}, where these look for it: {found.configs}")
    print(f"check     big-retrieval data check {name} --data={found.place}")


def check(name: str, folder: str) -> None:
    """Says whether a folder is complete.

    Args:
      name: of the data set.
      folder: the folder; "": that which the configs read.

    Raises:
      UserError: there is no such data set or folder, or the folder is not complete.
    """
    found = _named(name)
    wrong, place = 0, Path(folder or found.place)
    for each in compare(found, place):
        wrong += bool(each.wrong)
        state = each.wrong or ("optional" if each.said == "none" else "ok")
        print(f"{each.part.path:<32}  {each.said}: {state}", flush=True)
    if wrong:
        raise UserError(
            f"{place} is not complete: {wrong} of {len(found.parts)} parts are missing or differ; "
            f"big-retrieval data get {name} says what belongs there."
        )
    print(f"{place} is complete, as far as the catalogue knows {name}")


def _named(name: str) -> DataSet:
    """The entry of a data set."""
    if name not in CATALOGUE:
        near = difflib.get_close_matches(name, CATALOGUE, 1)
        hint = f"did you mean {near[0]}?" if near else "big-retrieval data get lists all names."
        raise UserError(f"there is no data set {name!r}; {hint}")
    return CATALOGUE[name]
