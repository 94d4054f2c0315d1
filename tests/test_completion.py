"""`big-retrieval completion`: words that bash and zsh complete."""

import shutil
import subprocess

import pytest

from big_retrieval.commands import COMMANDS
from tests.helpers import ROOT, in_process


@pytest.fixture(scope="module")
def script() -> str:
    done = in_process("completion", "bash")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


BASH = shutil.which("bash")


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected", "others"),
    [
        (["ev"], ["evaluate"], []),
        ([""], [*COMMANDS], []),
        (["evaluate", "--r"], ["--rankings", "--run="], ["--step="]),
        (["data", "in"], ["inspect"], []),
        (["data", "inspect", "--"], ["--limit=", "--config="], ["--out="]),
        (["explain", "--"], ["--text="], ["--count="]),
        (["search", "--"], ["--index=", "--help"], ["--config=", "--workdir=", "--dry-run"]),
        (["train", "--config", "=", "quick"], ["quickstart"], ["emoji"]),
        (["train", "--config", "="], ["quickstart", "emoji"], []),
        (["train", "--config=quick"], ["--config=quickstart"], []),
        (["search", "--index", "=", "big_retr"], ["big_retrieval"], []),
    ],
)
def test_completion_in_bash(
    script: str, words: list[str], expected: list[str], others: list[str]
) -> None:
    given = " ".join(f"'{word}'" for word in ["big-retrieval", *words])
    code = f"{script}\nCOMP_WORDS=({given}); COMP_CWORD={len(words)}; _big_retrieval\n"
    code += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        [str(BASH), "--norc", "-uc", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    words_completed = done.stdout.split()
    assert set(expected) <= set(words_completed)
    assert not set(others) & set(words_completed)


def test_completion_zsh_loads_the_bash_script(script: str) -> None:
    done = in_process("completion", "zsh")
    assert done.returncode == 0
    assert script.partition("complete -F")[0] in done.stdout
    assert "bashcompinit" in done.stdout
