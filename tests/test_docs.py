"""Every command and every program in README.md and docs/ is run here, or says why it is not.

A fenced block has a language. Blocks of the language `sh` hold commands, of `python` programs or
parts of config files; `text` and `json` are shown, not run. A comment in front of a block changes
what happens to it:

    <!-- not run: needs MS MARCO -->       not run; its commands and flags are checked
    <!-- config: vdr_t2t_msmarco -->       a part of a config file, which changes this config

All other blocks of a page are run in their order in one folder, which holds what `_files` writes. A
Python block whose first line is a comment with a file name becomes that file. A Python block that
changes a config `c` is executed by itself. Training is cut to a few steps. Commands are forks of a
process that has imported the package (tests/warm.py), but for those of one page.
"""

import functools
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import big_retrieval
from big_retrieval import config
from big_retrieval.config import recipe
from tests.helpers import ROOT, environment

PAGES = ["README.md", *sorted(str(x.relative_to(ROOT)) for x in (ROOT / "docs").rglob("*.md"))]
LANGUAGES = ("sh", "python", "text", "json")
LONGEST = 120  # lines of README.md
# Modules without a command of `big-retrieval`, which pages may start with python -m.
MODULES = ("benchmarks.", "tests.", "big_retrieval")
# A training that a page shows is cut to this.
SHORT = ["--config.total_steps=4", "--config.batch_size=16"]
STARTED = "docs/CONFIGS.md"  # the commands of this page are started as a user's are
ASSIGNMENT = re.compile(r"^\w+=\S*$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
      page: its path.
      line: the number of its first line.
      language: behind the fence.
      text: between the fences.
      why: why it is not run; "": it is.
      config: what a part of a config file changes.
    """

    page: str
    line: int
    language: str
    text: str
    why: str
    config: str

    @property
    def where(self) -> str:
        """For messages and names of tests."""
        return f"{self.page}:{self.line}"

    @property
    def fragment(self) -> bool:
        """Whether it is a part of a config file."""
        return self.language == "python" and bool(re.search(r"^c\.", self.text, re.M))

    @property
    def file(self) -> str:
        """The file that it is."""
        name = re.match(r"# ([\w/]+\.py)\n", self.text)
        return name[1] if name and self.language == "python" else ""


@functools.cache
def blocks(page: str) -> tuple[Block, ...]:
    """All fenced blocks of a page."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    found, number = [], 0
    while number < len(lines):
        fence = re.match(r"(\s*)(```+)\s*(\w*)\s*$", lines[number])
        if fence is None:
            assert not lines[number].lstrip().startswith("```"), f"{page}:{number + 1}"
            number += 1
            continue
        end = next(i for i in range(number + 1, len(lines)) if lines[i].strip() == fence[2])
        text = "\n".join(line[len(fence[1]) :] for line in lines[number + 1 : end]) + "\n"
        before = lines[number - 1].strip() if number else ""
        note = re.match(r"<!-- (not run|config): (.+) -->$", before)
        kind, words = (note[1], note[2]) if note else ("", "")
        why, changed = (words, "") if kind == "not run" else ("", words)
        found.append(Block(page, number + 2, fence[3], text, why, changed))
        number = end + 1
    return tuple(found)


ALL = [block for page in PAGES for block in blocks(page)]
FRAGMENTS = [block for block in ALL if block.fragment and not block.why and not block.file]
PLAYED = [
    page
    for page in PAGES
    if any(x.language in ("sh", "python") and not x.why and not x.fragment for x in blocks(page))
]


def lines(text: str) -> Iterator[list[str]]:
    """The commands of a block of the language sh, as words, without assignments in front."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and ASSIGNMENT.match(words[0]):
            words.pop(0)
        if words:
            yield words


def inline(page: str) -> Iterator[list[str]]:
    """The commands of `big-retrieval` that stand in a page's sentences."""
    text = re.sub(
        r"^(\s*)```.*?^\1```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S
    )
    for code in re.findall(r"`(big-retrieval [^`]+)`", text):
        yield shlex.split(code.replace("\n", " "))


# ---- Commands exist, with their flags


@functools.cache
def known_flags(command: str) -> frozenset[str]:
    """The flags of a command and of its actions, and names before the dot of keys."""
    from big_retrieval import cli, commands
    from big_retrieval.cli.options import fields_of

    functions = commands.actions_of(commands.load(command)).values()
    fields = [field for function in functions for field in fields_of(cli.options_class(function))]
    names = {name for x in fields for name in (x.name, x.details.alias, x.details.keys)}
    return frozenset({*names, "help"} - {""})


def flags(words: list[str]) -> Iterator[str]:
    """The names of the flags among words; of --config.a.b, config."""
    for word in words:
        if word == "--":
            return
        if word.startswith("--"):
            yield word[2:].partition("=")[0].partition(".")[0].replace("-", "_")


def check_command(words: list[str], where: str) -> None:
    """Fails where a command, or one of its flags, does not exist."""
    name = words[0]
    if words[:3] == ["python", "-m", "big_retrieval"]:
        name, words = "big-retrieval", ["big-retrieval", *words[3:]]
    if name == "big-retrieval":
        from big_retrieval.commands import COMMANDS

        if words[1].isupper() or words[1].startswith("-"):  # COMMAND stands for any
            return
        assert words[1] in COMMANDS, f"{where}: there is no command {words[1]!r}"
        for flag in flags(words[2:]):
            known = known_flags(words[1])
            accepted = {flag, flag.removeprefix("no")} & known or flag in ("config", "help")
            assert accepted, f"{where}: {words[1]} has no flag --{flag}"
    elif name == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(words[1:]) <= set(targets), where
    elif words[:2] == ["python", "-m"]:
        assert words[2].startswith(MODULES), f"{where}: use big-retrieval for {words[2]}"
        file = ROOT / (words[2].replace(".", "/") + ".py")
        assert file.is_file(), where
    elif name == "python":
        assert (ROOT / words[1]).is_file(), where
    elif name == "pip":
        extras = re.findall(r"\[([\w-]+)\]", " ".join(words))
        assert all(f'"{x}": ' in (ROOT / "setup.py").read_text() for x in extras), where
    elif name.startswith("launch/"):
        assert (ROOT / name).is_file(), where
        check_command(["big-retrieval", "train", *words[words.index("--") + 1 :]], where)
    else:
        raise AssertionError(f"{where}: nobody knows the command {name!r}")


@pytest.mark.parametrize("page", PAGES)
def test_doc_commands_parse(page: str) -> None:
    for block in blocks(page):
        if block.language == "sh":
            for words in lines(block.text):
                check_command(words, block.where)
    for words in inline(page):
        check_command(words, page)


@pytest.mark.parametrize("page", PAGES)
def test_doc_blocks_are_run_or_give_reason(page: str) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block.where}: the block has no language"
        if block.language in ("sh", "python") and not block.why:
            assert block in FRAGMENTS or page in PLAYED, block.where


@pytest.mark.parametrize("page", PAGES)
def test_docs_have_no_old_commands(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for module in re.findall(r"python -m ([\w.]+)", text):
        assert module.startswith(MODULES[:2]) or module == "big_retrieval", module


# ---- Parts of config files


@pytest.mark.parametrize("block", FRAGMENTS, ids=lambda x: x.where)
def test_doc_fragments_change_configs(block: Block) -> None:
    """The config that a fragment changes still has the form of a config."""
    name, _, arg = (block.config or "quickstart").partition(":")
    c = importlib.import_module(f"configs.{name}").get_config(arg)
    exec(compile(block.text, block.where, "exec"), {"c": c, "config": config, "recipe": recipe})
    assert config.load(c)


# ---- Pages are played


@pytest.mark.slow
@pytest.mark.parametrize("page", PLAYED)
def test_doc_pages_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """All blocks of a page that are not marked, one after the other, in one folder."""
    folder = tmp_path / "here"
    _files(folder)
    started = page == STARTED
    python = [sys.executable] if started else request.getfixturevalue("warm_python")
    path = _programs(tmp_path / "bin", python)
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": "__main__", "big_retrieval": big_retrieval}
    for block in blocks(page):
        if block.why or block in FRAGMENTS or block.language not in ("sh", "python"):
            continue
        if block.file:
            (folder / block.file).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, block.where, "exec"), names)
        else:
            _play(block, f"{path}{os.pathsep}{os.environ['PATH']}")


def _play(block: Block, path: str) -> None:
    """Runs the commands of a block."""
    script = block.text.replace("\\\n", " ")
    script = re.sub(r"^XLA_FLAGS=(\S+)", r'XLA_FLAGS="$XLA_FLAGS \1"', script, flags=re.M)
    short = " ".join(SHORT)
    script = re.sub(r"--config=(quickstart|scenes_vdr)(?=\s)", r"--config=\1:runlocal", script)
    script = re.sub(
        r"big-retrieval train [^\n#]*",
        lambda found: f"{found[0]} {short} {_shallow(found[0])} ",
        script,
    )
    seeds = "quickstart_seeds.py:runlocal"
    script = script.replace(seeds, f"{seeds},steps=4,seeds=1")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=environment(PATH=path, PYTHONPATH=str(ROOT)), stdin=subprocess.DEVNULL,
        text=True, capture_output=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, f"{block.where}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def _shallow(command: str) -> str:
    """Flags for a training of a shipped config: a layer a tower, and probes that stop early.

    On the eight devices of README.md a probe took longer than all the rest of the page.
    """
    found = re.search(r"--config=(\w+)(?::(\S+))?(?=\s)", command)
    if found is None or not (ROOT / "configs" / f"{found[1]}.py").is_file():
        return ""
    c = importlib.import_module(f"configs.{found[1]}").get_config(found[2] or "")
    depths = [f"--config.towers.{name}.depth=1" for name, x in c.towers.items() if "depth" in x]
    probes = [f"--config.evals.{name}.steps=10" for name, x in c.evals.items() if "steps" in x]
    return " ".join([*depths, *probes])


def _programs(folder: Path, python: list[str]) -> Path:
    """A new folder with `big-retrieval` and `python` (by these words), and no `make`."""
    folder.mkdir()
    for name, command in (("python", ""), ("big-retrieval", "-m big_retrieval")):
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(python)} {command} "$@"\n')
        (folder / name).chmod(0o755)
    (folder / "make").write_text("#!/bin/sh\nexit 0\n")  # both targets are what CI runs
    (folder / "make").chmod(0o755)
    return folder


def _files(folder: Path) -> None:
    """What pages take for granted: the repository's folders, and a few files of the user's."""
    folder.mkdir()
    for name in ("configs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    rng = np.random.default_rng(0)
    scenes = config.Scenes(split="test", count=40).build()
    rows = []
    for number in range(40):
        record = scenes[number]
        Image.fromarray(record["image"]).save(folder / f"scene_{number}.png")
        rows.append(
            {"id": f"p{number}", "image": f"scene_{number}.png", "text": record["captions"][0]}
        )
    (folder / "pictures.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Image.fromarray(scenes[0]["image"]).save(folder / "scene.png")
    questions = [f"{number},{row['text']}" for number, row in enumerate(rows[:5])]
    (folder / "queries.csv").write_text("\n".join(["id,question", *questions]) + "\n")
    pairs = [
        f"word{query},product{product},title {product},{rng.integers(1, 100)}"
        for query in range(20)
        for product in rng.choice(30, 6, replace=False)
    ]
    (folder / "pairs.csv").write_text(
        "\n".join(["query,product_id,title,score_linear", *pairs]) + "\n"
    )


# ---- The README


def test_reference_pages_repeat_the_docstrings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "tools"))
    reference = importlib.import_module("reference")
    for path in reference.PAGES.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        assert reference.updated_page(text) == text, f"run python docs/tools/reference.py: {path}"


def test_readme_is_short_and_its_links_lead_somewhere() -> None:
    """Links within docs/ are checked where the site is built."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    for target, _, anchor in (x.partition("#") for x in re.findall(r"\]\(([^)]+)\)", text)):
        assert (ROOT / target).exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", (ROOT / target).read_text(), re.M)
            ids = {re.sub(r"[^\w -]", "", x).strip().lower().replace(" ", "-") for x in headings}
            assert anchor in ids, f"{target}#{anchor}"
