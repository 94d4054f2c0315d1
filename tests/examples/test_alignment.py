"""examples/alignment.py: an evaluator of a user's own, from the config file to a foreign folder."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from big_retrieval.config import registry
from big_retrieval.errors import UserError
from big_retrieval.inference.load import load
from tests.examples.helpers import (
    SHALLOW,
    assert_evaluated_alike,
    copied,
    example,
    ran,
    trained,
    without_own_parts,
)
from tests.helpers import results

FLAGS = ["--config.evals.spread.data.count=16", SHALLOW]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of a copy of the example, started from another folder."""
    folder = tmp_path_factory.mktemp("own")
    config = copied("alignment", folder, "alignment")
    trained(config, folder / "run", "--config.evals.spread.power=1.0", *FLAGS)
    return folder


@pytest.mark.slow
def test_alignment_is_logged_and_its_file_noted(run: Path) -> None:
    found = results(run / "run")
    assert 0 < found["own_alignment/spread/alignment"] < 2
    assert found["own_alignment/spread/uniformity_text"] < 0
    saved = json.loads((run / "run" / "config.json").read_text())
    assert saved["evals"]["spread"]["power"] == 1.0
    noted = saved["plugins"]["evaluator/own_alignment"]
    assert noted["file"] == str((run / "own_alignment.py").resolve())
    assert len(noted["sha256"]) == 64


@pytest.mark.slow
def test_load_needs_no_file_of_alignment_but_evaluate_does(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = shutil.copytree(run / "run", tmp_path / "moved")
    without_own_parts(monkeypatch, "evaluator")
    model = load(moved)
    assert model.config.evals["spread"].prefix("spread") == "own_alignment/spread"
    done = ran("evaluate", f"--run={moved}", status=2)
    assert "config.evals.spread is of the type 'own_alignment', which " in done.stderr
    assert f"{run / 'own_alignment.py'} defines: give this file as --plugins=FILE" in done.stderr
    done = ran("evaluate", f"--run={moved}", f"--plugins={run / 'own_alignment.py'}")
    assert_evaluated_alike(moved, run / "run", "own_alignment/")


def test_alignment_and_uniformity_equal_definitions() -> None:
    module = example("alignment")
    embeddings = np.eye(3)  # distances of sqrt(2)
    assert module.uniformity(embeddings, 2.0) == pytest.approx(-4.0)


MISTAKES: list[tuple[str, str]] = [
    ('@config.register("evaluator")\nclass A(config.Evaluator): pass', "A is not a dataclass; put"),
    (
        '@config.register("evaluator")\n@dataclass(frozen=True)\nclass A(config.Evaluator):\n'
        "    x: int = 0",
        "A has no type; give it the key type: Literal",
    ),
    (
        '@config.register("evaluator")\n@dataclass(frozen=True)\nclass A(config.Evaluator):\n'
        '    x: int\n    type: Literal["a"] = "a"',
        "A: every key of a part needs a default",
    ),
    (
        '@config.register("evaluator")\n@dataclass(frozen=True)\nclass A(config.Evaluator):\n'
        '    type: Literal["retrieval"] = "retrieval"',
        "A: there is a part of the kind 'evaluator' and the type 'retrieval' already",
    ),
    (
        '@config.register("field")\n@dataclass(frozen=True)\nclass A(config.Field):\n'
        '    type: Literal["a"] = "a"\n    def build(self, tools): pass',
        "A has no method shapes(), which every part of the kind 'field' needs.",
    ),
    ('@config.register("evaluater")\nclass A: pass', "unknown kind of parts 'evaluater'; known: "),
]


@pytest.mark.parametrize(("body", "words"), MISTAKES)
def test_mistakes_are_one_sentence(body: str, words: str, tmp_path: Path) -> None:
    head = "from dataclasses import dataclass\nfrom typing import Literal\n"
    head += "from big_retrieval import config\n"
    (tmp_path / "bad.py").write_text(head + body + "\ndef get_config(arg=''): return None\n")
    with pytest.raises(UserError, match=re.escape(words)):
        registry.import_file(tmp_path / "bad.py")


BASE = """
from dataclasses import dataclass
from typing import Literal
from big_retrieval import config

@config.register("evaluator")
@dataclass(frozen=True)
class Base(config.Evaluator):
    type: Literal["base_of_mine"] = "base_of_mine"

    def run(self, context, weights):
        return {}
"""
HEIR = BASE.replace("class Base(config.Evaluator)", "class Heir(base_of_mine.Base)")
HEIR = "import base_of_mine\n" + HEIR.replace('"base_of_mine"', '"heir_of_mine"')


def test_run_notes_file_of_base_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a resume notices when what a part inherits has changed."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "base_of_mine.py").write_text(BASE)
    (tmp_path / "heir_of_mine.py").write_text(HEIR)
    registry.import_file(tmp_path / "heir_of_mine.py")
    part = registry._parts["evaluator"]["heir_of_mine"]()
    noted = registry.plugins({"mine": part})
    assert {name: Path(plugin.file).name for name, plugin in noted.items()} == {
        "evaluator/base_of_mine": "base_of_mine.py",
        "evaluator/heir_of_mine": "heir_of_mine.py",
    }


@pytest.mark.slow
def test_keys_and_types_of_a_users_part_are_checked(run: Path) -> None:
    flags = [f"--config={run / 'own_alignment.py'}:runlocal", "--workdir=/nowhere"]
    for flag, words in (
        ("--config.evals.spread.power=-1.0", "config.evals.spread.power is -1.0; it must be pos"),
        ("--config.best_metric=own_alignment/spread/x", "did you mean own_alignment/spread/"),
    ):
        done = ran("main", *flags, flag, status=2)
        assert words in done.stderr
