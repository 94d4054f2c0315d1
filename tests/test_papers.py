"""docs/PAPERS.md: its commands parse, check without data, and train small; its counts are right."""

import dataclasses
import importlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import schema
from big_retrieval.errors import UserError
from big_retrieval.sweep import Entry, Sweep, spec
from big_retrieval.sweep.check import check_metrics, configurations
from big_retrieval.train.loop import train
from tests.helpers import ROOT, losses
from tests.test_docs import blocks, inline, lines

PAGE = "docs/PAPERS.md"
STATES = ("whole", "part", "not", "not yet")


@pytest.fixture(autouse=True)
def _at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def commands() -> list[list[str]]:
    """All commands of the page."""
    shown = [
        words for block in blocks(PAGE) if block.language == "sh" for words in lines(block.text)
    ]
    return [*inline(PAGE), *shown]


def values(flag: str, command: str = "") -> list[str]:
    """What the page's commands, or those of one name, give to a flag, each once."""
    chosen = [words for words in commands() if command in ("", words[1])]
    found = [word for words in chosen for word in words if word.startswith(f"--{flag}=")]
    return list(dict.fromkeys(word.partition("=")[2] for word in found))


def file_of(text: str) -> str:
    """The file of a shipped config, with the argument."""
    name, colon, arg = text.partition(":")
    return f"configs/{name}.py{colon}{arg}"


def small(text: str) -> str:
    """The `:runlocal` form of a sweep or config with its argument."""
    return f"{text}{',' if ':' in text else ':'}runlocal"


def rows() -> Iterator[tuple[str, list[str]]]:
    """Yields heading and cells of each row of the tables in sections "##", not in "###"."""
    heading, subsection = "", False
    for line in (ROOT / PAGE).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            subsection = line.startswith("###")
            heading = heading if subsection else line
        if subsection:
            continue
        if line.startswith("| ") and not line.startswith(("| | ", "| --- ")):
            yield heading, [cell.strip() for cell in line.strip("|").split("|")]


def test_paper_page_counts_its_tables() -> None:
    """A table of several data sets has its state in the first of its rows."""
    states = Counter(cells[-1] for _, cells in rows() if cells[-1])
    assert set(states) <= set(STATES)
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    said = re.search(r"Of (\d+) tables and figures, (\d+) can be made whole, (\d+) in part", text)
    assert said is not None
    told = [int(number) for number in said.groups()]
    assert told == [sum(states.values()), states["whole"], states["part"]]
    for path in (ROOT / "configs" / "papers").glob("*.py"):
        assert f"--sweep=configs/papers/{path.name}" in text, path.name
    for heading, cells in rows():
        assert cells[-1] or cells[0].split(",")[0] in text.split(heading)[1], cells[0]
        assert len(cells) == 6, cells[0]


def test_hyper_parameters_are_those_of_vdr_table_3(capsys: pytest.CaptureFixture[str]) -> None:
    from big_retrieval.commands.configs import ConfigsOptions, main

    main(ConfigsOptions(names=("vdr_t2t_msmarco", "vdr_cm_yfcc15m")))
    lines = capsys.readouterr().out.splitlines()
    found = {cells[0]: cells[1:] for cells in (re.split(r" {2,}", line) for line in lines)}
    assert found[""] == ["vdr_t2t_msmarco", "vdr_cm_yfcc15m"]
    expected = {  # the paper's rows, in its order; a warm-up of one epoch
        "batch": ["256", "4,096"], "length of the run": ["20 epochs", "20 epochs"],
        "learning rate": ["2e-05", "0.0002"],
        "warm-up steps": [f"{502_939 // 256:,}", f"{15_300_000 // 4096:,}"],
        "decay": ["linear", "cosine"], "norm 1": ["no / no", "yes / yes"],
        "temperature": ["1, fixed", "0.07, learned"], "hard negatives": ["1", "0"],
        "active terms": ["768 / 768", "512 / 512"], "positions": ["256 / 256", "77 / 49"],
        "width": ["768 / 768", "768 / 768"],
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    with pytest.raises(UserError, match="Unknown config 'vdr_t2t'"):
        main(ConfigsOptions(names=("vdr_t2t",)))


def test_hard_negatives_of_msmarco_are_bm25s_once_a_query() -> None:
    def config(name: str, arg: str = "") -> Any:
        return importlib.import_module(f"configs.{name}").get_config(arg)

    for name in ("dpr_msmarco", "splade_msmarco", "vdr_t2t_msmarco"):
        c = config(name)
        assert (c.data.lists, c.data.by_query, c.negatives.count) == (("bm25",), 0, 1), name
        assert c.optimizer.schedule.warmup_steps == 502_939 // 256, name
        assert config(name, "systems=all").data.lists == (), name
        assert config(name, "systems=bm25+dense").data.lists == ("bm25", "dense"), name
        c = config(name, "triples=ids.tsv")
        assert (c.data.path, c.data.lists) == ("data/msmarco/ids.tsv", ()), name
        assert c.data.by_query > 0, name
        assert c.optimizer.schedule.warmup_steps == 400_282 // 256, name


def test_captions_of_coco_are_evaluated_as_in_ltd() -> None:
    for name in ("ltd_coco", "ltd_vsrn", "ltd_tern"):
        get_config = importlib.import_module(f"configs.{name}").get_config
        c = get_config("")
        assert c.evals.cxc.min_score == 0, name
        folder = "data/coco"
        assert c.evals.ndcg.relevance == (
            f"rougeL_tern={folder}/coco-test-rougeL.npy", f"spice={folder}/coco-test-spice.npy",
        ), name  # fmt: skip
        computed = get_config("rouge=computed,spice=none").evals.ndcg.relevance
        assert computed == ("rougeL",), name


@pytest.mark.slow
def test_commands_check_without_data(tmp_path: Path) -> None:
    """Sweeps and configs of the page, whole and in `:runlocal`; sweeps with the paper's numbers."""
    sweeps = {form: spec.load(form) for x in values("sweep") for form in (x, small(x))}
    entries = {_key(entry): entry for sweep in sweeps.values() for entry in sweep.runs}
    for text in values("config"):
        for form in (file_of(text), small(file_of(text))):
            entries.setdefault(form, Entry("config", form))
    named = [dataclasses.replace(entry, name=f"n{n}") for n, entry in enumerate(entries.values())]
    found = configurations(spec.runs_of(Sweep(runs=named), tmp_path))
    checked = dict(zip(entries, found, strict=True))
    for text, sweep in sweeps.items():
        check_metrics(sweep, [checked[_key(entry)] for entry in sweep.runs])
        has_numbers = not text.endswith("runlocal") and "figure3,name=coco" not in text
        assert any(sweep.paper.values()) == has_numbers, text


def _key(entry: Entry) -> str:
    return json.dumps([entry.config, dict(entry.overrides)], default=str)


def shrunk(entry: Entry) -> configs.Config:
    """A cell of a sweep with one layer a tower, a few records and three steps, not evaluated."""
    file, _, arg = entry.config.partition(":")
    c: Any = importlib.import_module(file.removesuffix(".py").replace("/", ".")).get_config(arg)
    c.unlock()
    c.update_from_flattened_dict(entry.overrides)
    c.total_epochs, c.total_steps, c.batch_size, c.log_every = None, 3, 8, 1
    c.checkpoint_every, c.checkpoint_every_epochs, c.report, c.microbatch = 3, 0.0, False, None
    c.evals, c.best_metric, c.final_weights = {}, "", "last"
    c.eval_every, c.eval_every_epochs = 0, 0.0
    c.optimizer.phases, c.optimizer.schedule.warmup_steps = {}, 1
    for tower in c.towers.values():
        if "depth" in tower:
            tower.depth = 1
    c.data.count = 40
    if c.tokenizer.get("sources"):
        c.tokenizer.sources = ("data",)
    return configs.load(c)


@pytest.mark.slow
def test_one_cell_of_each_sweep_trains(tmp_path: Path) -> None:
    """And each config that the page trains. Cells whose small forms are one are trained once."""
    done: set[str] = set()
    entries = {text: list(spec.load(small(text)).runs) for text in values("sweep")}
    trained = values("config", "train")
    entries |= {text: [Entry("config", small(file_of(text)))] for text in trained}
    for text, cells in ((text, [*map(shrunk, found)]) for text, found in entries.items()):
        keys = [json.dumps(schema.to_plain(cell), default=str, sort_keys=True) for cell in cells]
        if done & set(keys):
            continue
        done.add(keys[-1])
        folder = tmp_path / str(len(done))
        train(cells[-1], folder, jax.devices()[:1])
        logged = losses(folder)
        assert sorted(logged) == [1, 2, 3], text
        assert np.isfinite([*logged.values()]).all(), text
