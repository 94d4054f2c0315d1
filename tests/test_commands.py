"""The command `big-retrieval`: help, versions, unknown commands, names of configs."""

import dataclasses
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Annotated, Literal

import pytest

from big_retrieval import __version__, cli, commands
from big_retrieval.cli import shipped
from big_retrieval.cli.options import AtLeast1, Flag, flags_of, meanings_of, parse
from big_retrieval.config import Config
from big_retrieval.config.optimizer import Schedule
from big_retrieval.data.judged.four_way import SplitOptions
from big_retrieval.errors import UserError
from big_retrieval.sweep import spec
from big_retrieval.sweep.check import configurations
from tests.helpers import ROOT, command, environment, in_process

NAMES = sorted(commands.COMMANDS)


# ---- Help and version


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_help_lists_all_commands(words: tuple[str, ...]) -> None:
    done = in_process("", *words)
    assert (done.returncode, done.stderr) == (0, "")
    for name, about in commands.COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert about in done.stdout
        assert about.endswith(".")


@pytest.mark.parametrize("name", [*NAMES, "main"])
def test_help_of_a_command(name: str) -> None:
    done = in_process(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    first = done.stdout.splitlines()[0]
    assert first.endswith((".", ":"))
    if "" in commands.actions_of(commands.load("train" if name == "main" else name)):
        assert "\nFlags:\n" in done.stdout
        assert "\n  --verbosity=debug|info|warning|error\n" in done.stdout
    for internal in ("--alsologtostderr", "--flagfile", "--pdb", "Alias for"):
        assert internal not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 110


def test_help_prints_defaults_and_choices() -> None:
    text = in_process("search", "--help").stdout
    assert "--depth=N\n        Maximum number of documents per query (default: 10)" in text
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


def test_meanings_come_from_comments() -> None:
    assert meanings_of(Config)["batch_size"] == "rows of the global batch"
    assert meanings_of(Config)["init"].startswith("initial weights by tower")
    assert meanings_of(Schedule)["warmup_steps"] == "length of the linear rise from 0"
    assert meanings_of(SplitOptions)["dev_share"].endswith("queries, for development")
    assert meanings_of(dataclasses.make_dataclass("WithoutFile", ["x"])) == {}


@pytest.mark.parametrize("words", [("--version",), ("train", "--version")])
def test_version_command_prints_version(words: tuple[str, ...]) -> None:
    name, *rest = words if len(words) > 1 else ("", *words)
    done = in_process(name, *rest)
    assert (done.returncode, done.stdout) == (0, f"big-retrieval {__version__}\n")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from big_retrieval import __main__\n"
        f"for name in {NAMES}:\n    sys.argv = ['p', name, '--help']\n    __main__.main()\n"
        "heavy = {'jax', 'flax', 'pyarrow', 'ml_collections', 'big_retrieval.config'}\n"
        "assert not heavy & {*sys.modules}, heavy & {*sys.modules}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# ---- Options


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExampleFlags:
    path: Path  # File to read
    count: AtLeast1 = 3  # Number of rows
    share: float | None = None
    form: Literal["a", "b"] = "a"
    names: tuple[str, ...] = ()
    dry_run: bool = False
    # Texts
    text: Annotated[tuple[str, ...], Flag(repeated=True, alias="caption")] = ()
    words: Annotated[tuple[str, ...], Flag(words=2)] = ()
    keys: Annotated[tuple[str, ...], Flag(keys="config")] = ()
    from_: str = ""
    why: Annotated[str, Flag(needs="share")] = ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--path=a", {}),
        ("-path a", {}),
        ("--path=a --count 5 --share=-0.5 --form=b", {"count": 5, "share": -0.5, "form": "b"}),
        ("one --path=a two --names=x,y", {"words": ("one", "two"), "names": ("x", "y")}),
        ("--path=a --text=b,c --caption=d", {"text": ("b,c", "d")}),
        ("--path=a --dry-run --from=x", {"dry_run": True, "from_": "x"}),
        ("--path=a --dry_run --no-dry-run", {"dry_run": False}),
        ("--path=a --dry_run=true --nodry_run", {"dry_run": False}),
        (
            "--path=a --config.a.b=1 --config.c 2 --noconfig.d",
            {"keys": ("--config.a.b=1", "--config.c", "2", "--noconfig.d")},
        ),
    ],
)
def test_options_are_parsed(words: str, expected: dict[str, object]) -> None:
    assert parse(ExampleFlags, words.split()) == ExampleFlags(path=Path("a"), **expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "--path is missing: file to read."),
        ("--path", "--path has no value; write --path=VALUE."),
        ("--path=a --count=0", "--count is 0; it must be at least 1."),
        ("--path=a --count=x", "--count is 'x'; it must be a whole number."),
        ("--path=a --share=x", "--share is 'x'; it must be a number."),
        ("--path=a --share=nan", "--share is nan; it must be a finite number."),
        ("--path=a --form=c", "--form is 'c'; it must be one of a, b."),
        ("--path=a --dry_run=x", "--dry_run is 'x'; it must be True or False."),
        ("--path=a --cuont=3", "Unknown command line flag 'cuont': did you mean --count?"),
        ("--path=a --why=x", "--why needs --share. Add --share, or remove --why."),
        ("--path=a b c d", "Not a flag: 'd'; at most 2 such words are taken."),
    ],
)
def test_mistakes_in_options(words: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse(ExampleFlags, words.split())
    assert str(error.value) == message


def test_every_flag_has_a_meaning() -> None:
    for name in NAMES:
        for function in commands.actions_of(commands.load(name)).values():
            cls = cli.options_class(function)
            assert {flag.field.name for flag in flags_of(cls)} <= set(meanings_of(cls)), cls


# ---- Names of configs


def test_configs_are_listed_by_name() -> None:
    done = in_process("configs")
    assert (done.returncode, done.stderr) == (0, "")
    for file in (ROOT / "configs").glob("*.py"):
        assert f"{file.stem} " in done.stdout
    assert "The model that `make quickstart` trains" in done.stdout
    assert str(ROOT / "launch") in done.stdout


def test_resolve_finds_shipped_configs_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = str(ROOT / "configs" / "quickstart.py")
    assert shipped.resolve("quickstart") == file
    assert shipped.resolve("quickstart:runlocal,steps=3") == f"{file}:runlocal,steps=3"
    assert shipped.resolve("configs/quickstart.py:runlocal") == f"{file}:runlocal"
    for other in ("configs/nothing.py", "configs", "nothing", "", "quickstart.py"):
        assert shipped.resolve(other) == other
    (tmp_path / "quickstart").write_text("")
    assert shipped.resolve("quickstart") == "quickstart"


def test_shipped_sweep_runs_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs name configs as in a checkout, too."""
    monkeypatch.chdir(tmp_path)
    sweep = spec.load("configs/sweeps/quickstart_seeds.py:runlocal,seeds=1")
    (found,) = configurations(spec.runs_of(sweep, tmp_path))
    assert found.plain["total_steps"] == 300


def test_configs_list_first_sentence_of_config(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text('"""One thing\nis said. And another.\n\nMore."""\n')
    assert shipped.summary(file) == "One thing is said."
    file.write_text("x = 1\n")
    assert shipped.summary(file) == ""


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
def test_import_works_next_to_a_checkout(source: Path, tmp_path: Path) -> None:
    """There, the checkout itself is an empty namespace of the same name, which came first."""
    file = build(source, "editable", tmp_path)
    with zipfile.ZipFile(file) as archive:
        paths = [archive.read(n).decode() for n in archive.namelist() if n.endswith(".pth")]
    assert [line.strip() for line in paths] == [str(source)]  # not an import of a finder
    code = f"import sys; sys.path.append({str(source)!r}); import big_retrieval as b; b.__version__"
    subprocess.run([sys.executable, "-S", "-c", code], cwd=source.parent, env={}, check=True)


@pytest.mark.slow
def test_wheel_contains_configs_and_launch_scripts(source: Path, tmp_path: Path) -> None:
    """It is built from the source distribution, which has all that it takes."""
    packed = build(source, "sdist", tmp_path / "sdist")
    shutil.unpack_archive(packed, tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("big_retrieval-*")
    file = build(unpacked, "wheel", tmp_path / "wheel")
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        (metadata,) = [archive.read(n).decode() for n in names if n.endswith("/METADATA")]
        for line in ("License-Expression: Apache-2.0", "# big_retrieval"):
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
