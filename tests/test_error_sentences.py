"""Sentences of errors, word by word: error_sentences.txt has a command and its sentence each.

Other tests look for the key, the file or the row in a message, so that only this file follows a
change of wording.
"""

import shlex
from pathlib import Path

import pytest

from tests.helpers import ROOT, in_process

FILE = Path(__file__).with_name("error_sentences.txt")
CASES = [tuple(block.split("\n")) for block in FILE.read_text().strip().split("\n\n")]


@pytest.mark.parametrize(("command", "sentence"), CASES)
def test_error_sentence(
    command: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    name, *flags = shlex.split(command)[2:]
    if name == "train":
        flags.insert(0, f"--workdir={tmp_path / 'run'}")
    done = in_process("", name, *flags)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == sentence
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
