"""The command `big-retrieval`: help, versions, unknown commands, completion, names of configs."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from big_retrieval import __version__, commands
from big_retrieval.cli import help as manual
from big_retrieval.cli import shipped
from big_retrieval.commands import shells
from big_retrieval.config import Config
from big_retrieval.config.optimizer import Schedule
from big_retrieval.sweep import spec
from big_retrieval.sweep.check import configurations
from tests.helpers import ROOT, command, environment, in_process

NAMES = sorted(commands.COMMANDS)


def process(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """`python -m big_retrieval` as a real process."""
    env = environment(PYTHONPATH=str(ROOT))
    return subprocess.run(
        [sys.executable, "-m", "big_retrieval", *words], cwd=cwd, env=env, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip


# ---- Help and version


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_all_commands_are_listed_with_a_sentence(words: tuple[str, ...]) -> None:
    done = in_process("", *words)
    assert (done.returncode, done.stderr) == (0, "")
    for name, about in commands.COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert about.about in done.stdout
        assert about.about.endswith(".")


@pytest.mark.parametrize("name", [*NAMES, "main"])
def test_help_of_a_command(name: str) -> None:
    done = in_process(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    first = done.stdout.splitlines()[0]
    assert first.endswith((".", ":"))
    assert "\nFlags:\n" in done.stdout
    assert "\n  --verbosity=debug|info|warning|error\n" in done.stdout
    for internal in ("--alsologtostderr", "--flagfile", "--pdb", "Alias for"):
        assert internal not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 110


def test_help_says_defaults_and_choices() -> None:
    text = in_process("search", "--help").stdout
    assert "--depth=N\n        Documents of a query at most (default: 10)" in text
    assert "--mode=parametric|bag|binary\n" in text
    assert "--[no]verify\n" in text
    assert "--config" not in text
    assert "--workdir" not in text


@pytest.mark.parametrize("name", ["train", "plan", "evaluate", "main"])
def test_help_with_a_config_lists_its_keys(name: str) -> None:
    done = in_process(name, "--config=quickstart:runlocal", "--config.batch_size=12", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--config.batch_size=12 (int)" in done.stdout
    assert "--config.dtype=" in done.stdout
    assert "(float32 or bfloat16)" in done.stdout
    assert "of the towers' computations" in done.stdout  # a comment beside the key
    assert "--config.losses.main.logit_scale.max=" in done.stdout
    assert "--config.towers.image.width=" in done.stdout


def test_help_with_a_config_that_fails() -> None:
    done = in_process("train", "--config=quickstart:nothing", "--help")
    assert done.returncode == 2
    assert "'nothing' is unknown" in done.stderr


def test_meanings_come_from_docstrings_and_comments() -> None:
    of_no_file = dataclasses.make_dataclass("OfNoFile", ["x"])
    doc = "What.\n\nAttributes:\n  first: one\n    and more.\n  second: two.\n\nRaises:\n  x: no."
    assert manual._of_docstring(doc) == {"first": "one and more.", "second": "two."}
    assert manual.meanings_of(Config)["batch_size"] == "global"
    assert manual.meanings_of(Config)["init"].startswith("by tower")
    assert manual.meanings_of(of_no_file) == {}
    assert manual.meanings_of(Schedule)["warmup_steps"] == "linear from 0"


@pytest.mark.parametrize("words", [("--version",), ("train", "--version")])
def test_version(words: tuple[str, ...]) -> None:
    name, *rest = words if len(words) > 1 else ("", *words)
    done = in_process(name, *rest)
    assert (done.returncode, done.stdout) == (0, f"big-retrieval {__version__}\n")


def test_real_processes_and_what_they_import() -> None:
    done = process("--version")
    assert (done.returncode, done.stdout) == (0, f"big-retrieval {__version__}\n")
    code = (
        "import sys; from big_retrieval import __main__; sys.argv = ['p', 'NAME', '--help']; "
        "__main__.main(); assert not {'jax', 'flax'} & set(sys.modules), 'jax'; "
        "found = [m for m in sys.modules if m.startswith('big_retrieval.commands.')]; "
        "assert len(found) <= 2, found"
    )
    for name in ("train", "evaluate", "search", "data"):
        done = subprocess.run(
            [sys.executable, "-c", code.replace("NAME", name)], cwd=ROOT, env=environment(),
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


# ---- Mistakes


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tarin"], "there is no command 'tarin': did you mean train?"),
        (["zzzzzz"], "there is no command 'zzzzzz': big-retrieval --help lists them."),
        (["--config=x"], "--config=x stands before the command: write big-retrieval COMMAND"),
        (["evaluate", "--workdir=x"], "--workdir is not for evaluate: --run names the run"),
        (["explain", "--workdir=x"], "--workdir is not for explain: --run names the run"),
        (["search", "--config=x"], "--config is not for search: leave it out."),
        (["search", "--top_k=3"], "--top_k is not for search: --depth says how many"),
        (["report", "--run=x"], "--run is not for report: give the folder alone"),
        (["plan", "--config=quickstart", "--distributed"], "--distributed is not for plan"),
        (["evaluate", "--run=a", "--untrained", "--config=quickstart"], "--run and --untrained"),
        (["evaluate", "--rnu=x"], "did you mean --run?"),
        (["completion"], "the shell is missing: big-retrieval completion bash"),
        (["completion", "fish"], "'fish' is no shell that is known"),
        (["data", "look", "--config=quickstart"], "say what to do: big-retrieval data inspect"),
        (["import", "x"], "'x' is no flag"),
        (["train", str(Path(__file__))], f"to train on it: --data={Path(__file__)}."),
    ],
)
def test_mistakes(words: list[str], sentence: str) -> None:
    done = in_process("", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_command_in_a_process() -> None:
    done = process("evalute")
    assert done.returncode == 2
    assert done.stderr == "error: there is no command 'evalute': did you mean evaluate?\n"


# ---- Where evaluate reads and writes


def test_evaluate_does_not_write_into_another_run(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    words = ["--untrained", "--config=quickstart:runlocal", f"--out={tmp_path / 'run'}"]
    done = in_process("evaluate", *words)
    assert done.returncode == 2
    assert "is a run, and something else is evaluated; give another." in done.stderr


@pytest.mark.slow
def test_evaluate_without_one_of_the_evaluators(tmp_path: Path) -> None:
    words = ["--untrained", "--config=quickstart:runlocal", "--config.evals.colours="]
    done = in_process("evaluate", *words, f"--out={tmp_path}")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert "retrieval/test/R-mean" in found
    assert not [name for name in found if name.startswith("zeroshot/colours")]


# ---- Names of configs


def test_configs_are_listed_by_name() -> None:
    done = in_process("configs")
    assert (done.returncode, done.stderr) == (0, "")
    for file in (ROOT / "configs").glob("*.py"):
        assert f"{file.stem} " in done.stdout
    assert "The model that `make quickstart` trains" in done.stdout
    assert str(ROOT / "launch") in done.stdout


def test_names_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = str(ROOT / "configs" / "quickstart.py")
    assert shipped.resolve("quickstart") == file
    assert shipped.resolve("quickstart:runlocal,steps=3") == f"{file}:runlocal,steps=3"
    assert shipped.resolve("configs/quickstart.py:runlocal") == f"{file}:runlocal"
    for other in ("configs/nothing.py", "configs", "nothing", "", "quickstart.py"):
        assert shipped.resolve(other) == other
    (tmp_path / "quickstart").write_text("")
    assert shipped.resolve("quickstart") == "quickstart"


def test_a_sweep_of_the_package_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs name configs as in a checkout, too."""
    monkeypatch.chdir(tmp_path)
    sweep = spec.load("configs/sweeps/quickstart_seeds.py:runlocal,seeds=1")
    (found,) = configurations(spec.runs_of(sweep, tmp_path))
    assert found.plain["total_steps"] == 300


def test_a_config_by_name_from_another_folder(tmp_path: Path) -> None:
    done = process("train", "--config=clip_b16:runlocal", "--config.batch_size=0", cwd=tmp_path)
    assert done.returncode == 2
    assert "config.batch_size is 0" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_first_sentence_of_a_config(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text('"""One thing\nis said. And another.\n\nMore."""\n')
    assert shipped.summary(file) == "One thing is said."
    file.write_text("x = 1\n")
    assert shipped.summary(file) == ""


# ---- Completion


@pytest.fixture(scope="module")
def script() -> str:
    done = in_process("completion", "bash")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


BASH = shutil.which("bash")


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected", "others"),
    [
        (["ev"], ["evaluate"], []),
        ([""], NAMES, []),
        (["evaluate", "--r"], ["--rankings", "--run="], ["--step="]),
        (["data", "in"], ["inspect"], []),
        (["search", "--"], ["--index=", "--help"], ["--config=", "--workdir=", "--dry-run"]),
        (["train", "--config", "=", "quick"], ["quickstart"], ["emoji"]),
        (["train", "--config", "="], ["quickstart", "emoji"], []),
        (["train", "--config=quick"], ["--config=quickstart"], []),
        (["search", "--index", "=", "big_retr"], ["big_retrieval"], []),
    ],
)
def test_bash_completes(
    script: str, words: list[str], expected: list[str], others: list[str]
) -> None:
    given = " ".join(f"'{word}'" for word in ["big-retrieval", *words])
    code = f"{script}\nCOMP_WORDS=({given}); COMP_CWORD={len(words)}; _big_retrieval\n"
    code += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        [str(BASH), "--norc", "-uc", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    found = done.stdout.split()
    assert set(expected) <= set(found)
    assert not set(others) & set(found)


def test_completion_knows_the_flags_of_help() -> None:
    for name in NAMES:
        text = in_process(name, "--help").stdout
        for flag, value in shells.flags_of(name).items():
            assert (f"--{flag}=" if value else f"--[no]{flag}") in text


def test_zsh_loads_what_bash_loads(script: str) -> None:
    done = in_process("completion", "zsh")
    assert done.returncode == 0
    assert done.stdout.endswith(script)
    assert "bashcompinit" in done.stdout


# ---- The installed package


def build(source: Path, kind: str, out: Path) -> Path:
    """Builds an "sdist", a "wheel" or an "editable" wheel, as pip does but with this Python."""
    code = f"import setuptools.build_meta as b; b.build_{kind}({str(out)!r})"
    args = [sys.executable, "-c", code]
    subprocess.run(args, cwd=source, check=True, capture_output=True, timeout=300)
    (file,) = [*out.glob("*.whl"), *out.glob("*.tar.gz")]
    return file


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout, named as the package is."""
    source = tmp_path_factory.mktemp("clones") / "big_retrieval"
    unwanted = shutil.ignore_patterns(".*", "build", "*.egg-info", "runs", "__pycache__")
    shutil.copytree(ROOT, source, ignore=unwanted)
    return source


@pytest.mark.slow
def test_the_folder_that_holds_a_checkout_finds_the_package(source: Path, tmp_path: Path) -> None:
    """There, the checkout itself is an empty namespace of the same name, which came first."""
    file = build(source, "editable", tmp_path)
    with zipfile.ZipFile(file) as archive:
        paths = [archive.read(n).decode() for n in archive.namelist() if n.endswith(".pth")]
    assert [line.strip() for line in paths] == [str(source)]  # not an import of a finder
    code = f"import sys; sys.path.append({str(source)!r}); import big_retrieval as b; b.__version__"
    subprocess.run([sys.executable, "-S", "-c", code], cwd=source.parent, env={}, check=True)


@pytest.mark.slow
def test_a_wheel_brings_configs_and_launch_scripts(source: Path, tmp_path: Path) -> None:
    """It is built from the source distribution, which has all that it takes."""
    packed = build(source, "sdist", tmp_path / "sdist")
    shutil.unpack_archive(packed, tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("big_retrieval-*")
    file = build(unpacked, "wheel", tmp_path / "wheel")
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        (metadata,) = [archive.read(n).decode() for n in names if n.endswith("/METADATA")]
        for line in (
            "Author: ",
            "License-Expression: Apache-2.0",
            "Project-URL: ",
            "# big_retrieval",
        ):
            assert f"\n{line}" in metadata
        archive.extractall(tmp_path / "installed")
        (points,) = [name for name in names if name.endswith("entry_points.txt")]
        assert "big-retrieval = big_retrieval.__main__:main" in archive.read(points).decode()
    for name in ("configs/quickstart.py", "configs/sweeps/emoji_gcl.py", "launch/slurm.sbatch"):
        assert f"big_retrieval/_shipped/{name}" in names
    assert {"big_retrieval/report/style.css", "big_retrieval/demo/templates/base.html"} <= {*names}
    assert {"big_retrieval/py.typed", "big_retrieval/exporting/pytorch/model.py"} <= {*names}
    (licence,) = [name for name in names if name.endswith("LICENSE")]
    assert licence.startswith("big_retrieval-")
    assert os.access(ROOT / "launch" / "local.sh", os.X_OK)
    (tmp_path / "elsewhere").mkdir()
    env = environment(PYTHONPATH=str(tmp_path / "installed"))
    for words in (["train", "--config=clip_b16:runlocal", "--config.batch_size=0"], ["configs"]):
        done = subprocess.run(
            command(*words), cwd=tmp_path / "elsewhere", env=env, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip
        if words == ["configs"]:
            assert str(tmp_path / "installed" / "big_retrieval" / "_shipped") in done.stdout
        else:
            assert done.returncode == 2
            assert "config.batch_size is 0" in done.stderr
