"""Two commands with one output: real processes, started together, stopped and killed."""

import dataclasses
import json
import signal
from pathlib import Path

import pytest

from big_retrieval.runtime import lease
from big_retrieval.runtime.locks import Lock, in_folder
from tests.helpers import command, lexical_texts, results, rows
from tests.launch.conftest import Start
from tests.launch.running import SCRIPT, SMALL, wait_for

RUN = [*SMALL, "--config.total_steps=30", "--config.checkpoint_every=3", "--config.report=False"]


def logged(workdir: Path) -> int:
    try:
        return len(rows(workdir))
    except (OSError, ValueError):
        return 0


@pytest.mark.slow
def test_second_launch_is_refused_and_third_waits(tmp_path: Path, start: Start) -> None:
    args = command("main", *RUN, f"--workdir={tmp_path / 'run'}")
    both = [start(*args), start(*args)]
    wait_for(lambda: any(process.poll() is not None for process in both))
    owner, refused = sorted(both, key=lambda process: process.poll() is not None)
    printed = refused.communicate()[0]
    assert refused.returncode == 2, printed
    assert f"{tmp_path / 'run'} is in use by process {owner.pid} on " in printed
    assert "--wait" in printed
    wait_for(lambda: logged(tmp_path / "run") >= 3)
    owner.send_signal(signal.SIGSTOP)  # alive all the same
    waiting = start(*args, "--wait")
    assert waiting.stdout is not None
    assert any(f"waiting for process {owner.pid} on " in line for line in waiting.stdout)
    owner.send_signal(signal.SIGCONT)
    output = owner.communicate()[0]
    assert owner.returncode == 0, output
    assert [row["step"] for row in rows(tmp_path / "run")] == list(range(1, 31))
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    output = waiting.communicate()[0]
    assert waiting.returncode == 0, output
    assert "already finished" in output
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert results(tmp_path / "run")["resumed_from"] is None
    assert not list(tmp_path.rglob("*.lock*"))


@pytest.mark.slow
def test_refused_first_process_ends_all(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The launcher itself refuses where the owner is a process of this machine, so it is another's.
    elsewhere = dataclasses.replace(lease.this_process(), boot="another")
    monkeypatch.setattr(lease, "this_process", lambda: elsewhere)
    folder = tmp_path / "run"
    with Lock(in_folder(folder), output=folder):
        group = start(SCRIPT, "--devices=2", "--", *RUN, f"--workdir={folder}")
        output = group.communicate()[0]
        assert group.returncode == 2, output
        assert "starting all again" not in output
        for number in (0, 1):
            log = (folder / "logs" / f"process_{number}.log").read_text()
            assert f"error: {folder} is in use by process " in log
            assert log.count("error:") == 1
    assert sorted(path.name for path in folder.iterdir()) == ["logs"]


def index_command(folder: Path, count: int) -> list[str]:
    """The command that indexes documents of a model; both are written."""
    from tests.retrieval.test_search_commands import save

    save(folder / "model", **lexical_texts())
    lines = [json.dumps({"id": f"d{n}", "text": f"a red ball {n}"}) for n in range(count)]
    (folder / "documents.jsonl").write_text("\n".join(lines))
    return command(
        "index", f"--run={folder / 'model'}", f"--out={folder / 'index'}", "--binary",
        "--text=text", f"--data={folder / 'documents.jsonl'}",
    )  # fmt: skip


@pytest.mark.slow
def test_sigterm_removes_an_unfinished_index(tmp_path: Path, start: Start) -> None:
    build = start(*index_command(tmp_path, 100_000))
    wait_for(lambda: (tmp_path / "index.partial" / ".building").exists())
    build.terminate()
    output = build.communicate()[0]
    assert build.returncode == 128 + signal.SIGTERM, output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["documents.jsonl", "model"]
