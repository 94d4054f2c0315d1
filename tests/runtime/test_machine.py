import subprocess
from pathlib import Path

from big_retrieval.runtime import machine


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_commit_of_a_checkout(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text("1")
    assert machine.commit(package) is None
    git(tmp_path, "init", "-q")
    assert machine.commit(package) is None  # no commit yet
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "tag", "-am", "a tag", "v1")
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    found = machine.commit(package)
    assert found is not None
    assert len(found) == 12
    assert head.startswith(found)
    (package / "a.py").write_text("2")
    assert machine.commit(package) == f"{found}-dirty"
    deep = package / "site-packages" / "package"
    deep.mkdir(parents=True)
    assert machine.commit(deep) is None


def test_processor_and_cores() -> None:
    assert machine.processor()
    assert machine.cores() >= 1
