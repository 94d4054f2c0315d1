"""The layers of the package, read from its imports: each imports only what lies below it."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "big_retrieval"
# From the ground up; names in one line do not import each other. docs/ARCHITECTURE.md says why.
LAYERS = (
    ("errors",),
    ("io", "batch"),
    ("runtime", "compiled"),
    ("sparse",),
    ("config",),
    ("similarity", "parallel", "cli"),
    ("data", "models"),
    ("losses", "inference"),
    ("evals", "interop"),
    ("report",),
    ("train",),
    ("plan", "retrieval", "mining", "sweep", "auto_config"),
    ("explain",),
    ("exporting", "demo"),
    ("launch",),
    ("commands",),
    ("main", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(path: Path) -> Iterator[str]:
    """Yields the folder or module of each import, inside functions, too."""
    tree = ast.parse(path.read_text())
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("big_retrieval"):
            first = (node.module or "").split(".")[1:2]
            yield from first or [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("big_retrieval."):
                    yield alias.name.split(".")[1]


def place(path: Path) -> str:
    """The folder below the package's root, or the module's own name at the root."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def test_every_folder_and_module_has_a_layer() -> None:
    found = {place(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert found == set(LEVEL)


def test_class_names_are_unique() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent.name == "pytorch":  # the same networks again, in the words of PyTorch
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_at_most_ten_modules_lie_at_the_root() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 10


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_imports_follow_layers(path: Path) -> None:
    own = place(path)
    if own == "__init__":  # the package's public face
        return
    for other in imports(path):
        if other != own and other in LEVEL:  # others are names of the package itself, such as load
            assert LEVEL[other] < LEVEL[own], f"{path.relative_to(ROOT)} imports {other} from above"


def test_nothing_is_unpickled_or_evaluated() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [ast.unparse(node.func)] if isinstance(node, ast.Call) else []
            assert not {"pickle", "dill", "joblib", "shelve", "eval", "exec"} & set(names), path
