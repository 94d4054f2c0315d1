"""Digests of what the readers of files return, so that a change of a reader shows in digests.json.

A change of a digest needs a line in CHANGELOG.md that names the changed rule. `REWRITE_DIGESTS=1`
makes the tests that run replace their digests; run them in one process.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from big_retrieval.auto_config import machine
from big_retrieval.auto_config.machine import Machine
from tests.data.digests import data_cases, fault_cases, source_cases, text_cases
from tests.data.digests.cases import Case
from tests.data.digests.opening import lines_of

FILE = Path(__file__).parent / "digests.json"
CASES: dict[str, Case] = {
    **source_cases.CASES, **text_cases.CASES, **data_cases.CASES, **fault_cases.CASES
}  # fmt: skip


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes to an empty folder, whose own name is the same everywhere, on a fixed machine."""
    monkeypatch.setattr(machine, "here", lambda: Machine(2))
    monkeypatch.setattr(machine, "text_weights", lambda: None)
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def digests() -> Any:
    """Yields the lines of digests.json, and writes them back if asked to."""
    lines = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    yield lines
    if os.environ.get("REWRITE_DIGESTS"):
        kept = {key: lines[key] for key in sorted(lines) if case_of(key) in CASES}
        text = json.dumps(kept, indent=0, ensure_ascii=False)
        FILE.write_text(f"{text}\n", encoding="utf-8")


def case_of(key: str) -> str:
    return key.partition(": ")[0]


@pytest.mark.parametrize("name", CASES)
def test_reader_gives_the_rows_and_batches_of_its_digests(name: str, digests: Any) -> None:
    found = {f"{name}: {kind}": line for kind, line in lines_of(CASES[name]).items()}
    before = {key: line for key, line in digests.items() if case_of(key) == name}
    if os.environ.get("REWRITE_DIGESTS"):
        for key in before:
            del digests[key]
        digests |= found
    else:
        rule = CASES[name].changes
        assert found == before, f"Stores change this case: {rule}" if rule else ""


def test_digests_belong_to_cases(digests: Any) -> None:
    assert {case_of(key) for key in digests} == set(CASES)
