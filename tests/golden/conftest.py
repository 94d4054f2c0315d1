"""Finds the reference values: `@pytest.mark.golden("oblique", "model_*.npz")`.

The mark gives a test the argument `case` once per file that matches (test id: the file's stem), or,
with `prefixes="."`, once per `<prefix>.` of the array names inside (id: stem-prefix); likewise with
"_". Files come from `--golden-dir`, else from tests/golden/data. With `quick=2` all but the first
two cases are slow tests. A pattern without any case is a failing test, or a skipped one with
`absent="the reason"`.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DATA = Path(__file__).parent / "data"


@dataclasses.dataclass(frozen=True)
class Found:
    """Where a case is: a file and the prefix of its arrays; without a file, what was looked for."""

    path: Path
    prefix: str = ""
    missing: bool = False
    absent: str = ""


def golden_folder(config: pytest.Config) -> Path:
    """The folder that holds oblique/, vdr/, ..."""
    given = config.getoption("--golden-dir")
    return Path(given) if given else DATA


def find(folder: Path, pattern: str, prefixes: str, absent: str) -> list[Any]:
    """Pytest parameters for all cases of a pattern; one that fails or skips if there are none."""
    found = []
    for path in sorted(folder.glob(pattern)):
        if not prefixes:
            found.append(pytest.param(Found(path), id=path.stem))
            continue
        with np.load(path, allow_pickle=False) as arrays:
            names = sorted({name.split(prefixes)[0] for name in arrays.files})
        found += [pytest.param(Found(path, f"{n}{prefixes}"), id=f"{path.stem}-{n}") for n in names]
    none = Found(folder / pattern, missing=True, absent=absent)
    return found or [pytest.param(none, id="no-case-found")]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "golden(folder, pattern, prefixes='', absent='', quick=None): reference"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("golden")
    if mark is None:
        return
    folder, pattern = mark.args
    how = {"prefixes": "", "absent": "", **mark.kwargs}
    quick = how.pop("quick", None)
    cases = find(golden_folder(metafunc.config) / folder, pattern, **how)
    if quick is not None:
        slow = [pytest.param(*x.values, id=x.id, marks=pytest.mark.slow) for x in cases[quick:]]
        cases = cases[:quick] + slow
    metafunc.parametrize("case", cases, indirect=True)


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Mapping[str, np.ndarray]:
    """The arrays of a case, without its prefix."""
    found: Found = request.param
    if found.missing and found.absent:
        pytest.skip(found.absent)
    if found.missing:
        pytest.fail(f"no reference values at {found.path}")
    with np.load(found.path, allow_pickle=False) as arrays:
        names = [name for name in arrays.files if name.startswith(found.prefix)]
        return {name[len(found.prefix) :]: arrays[name] for name in names}
