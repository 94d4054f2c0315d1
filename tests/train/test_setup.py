"""Errors before the first step, and the summary of a start."""

import dataclasses
import json
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.config import Config, ImageField, recipe
from big_retrieval.data.build import RULES
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.tables import Rows
from big_retrieval.data.mixture import MixedSource
from big_retrieval.data.stores.ingest import VERSION
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.errors import UserError
from big_retrieval.runtime import chips, distributed
from big_retrieval.train import step_figures, summary
from big_retrieval.train.build import build_model
from big_retrieval.train.data_fingerprint import IMAGES, ROWS, TEXTS, fingerprints
from big_retrieval.train.loop import train
from big_retrieval.train.run import set_up
from big_retrieval.train.step import abstract_batch
from tests.helpers import losses, results, tiny, user_error
from tests.train.runs import ONE
from tests.train.test_vdr_training import texts

pytestmark = pytest.mark.usefixtures("one_model")


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """A JSON Lines file of 20 pairs, of which the first image is missing."""
    rng = np.random.default_rng(0)
    lines = [{"image": "lost.png", "captions": "a"}]
    for index in range(1, 20):
        pixels = rng.integers(0, 256, (32, 32, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
        lines.append({"image": f"{index}.png", "captions": f"scene {index}"})
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path / "pairs.jsonl"


def on_pairs(pairs: Path, root: str = "", **evals: Any) -> Config:
    """A tiny config that trains on the file."""
    return tiny(data=recipe.entry(configs.Pairs(path=str(pairs), root=root)), evals=evals)


def rejected(config: Config, workdir: Path, *words: str) -> None:
    """Asserts that `set_up` raises an error with these words."""
    with user_error(*words):
        set_up(config, workdir, ONE)


def test_compile_steps_logs_and_returns_memory_and_time(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = set_up(tiny(), tmp_path, ONE)
    run.compile_steps(range(1))
    arrays = jax.tree.leaves((run.parts.abstract, abstract_batch(run.config, None)))
    kept = sum(array.size * array.dtype.itemsize for array in arrays) / 2**20
    line = next(line for line in said if line.startswith("memory of a device"))
    total, _, state, _ = (float(number) for number in re.findall(r"([\d.]+) [MG]iB", line))
    assert total > state == pytest.approx(kept, abs=0.02)
    assert not any("does not fit" in line for line in said)
    assert not any("by the compiler" in line for line in said)  # one CPU: no traffic, no cycles
    flops = run.config.batch_size * step_figures.pair_flops(run.config, run.parts.model)
    small = dataclasses.replace(
        chips.cpu(1), memory=2**20, clock=1e9, bfloat16=5 * flops, link=30 * 2**30
    )
    monkeypatch.setattr(chips, "of_kind", lambda *_: small)
    run.compile_steps(range(1))
    assert any("does not fit" in line for line in said)
    figures = dict.fromkeys(step_figures.RECORDED, 0) | {"wire_bytes": 3 * 2**30}
    figures |= {"exposed_wire_bytes": 2**30}
    figures |= {"cycles": 3 * 10**8, "unestimated_cycles": 10**8}
    figures |= {"kernel_cycles": None, "kernel_calls": 2}
    monkeypatch.setattr(step_figures, "program_figures", lambda program: figures)
    _, recorded = run.compile_steps(range(1))
    summary.record_start(run, None, recorded)
    start = json.loads((tmp_path / "environment.json").read_text())["starts"][-1]
    del figures["kernel_cycles"]
    assert start["compiled_steps"] == recorded == [figures]
    assert said[-1].endswith(
        "receives 3.00 GiB, 2.00 GiB of it while it computes; at least 0.433 s "
        "(25% of it our estimate of scatter, gather and sort), MFU at most 46%"
    )


def test_set_up_tries_training_records(pairs: Path, tmp_path: Path) -> None:
    set_up(on_pairs(pairs), tmp_path / "one", ONE)  # one damaged record is not an error
    words = "no usable record among its first 20", "line 1: the image 'lost.png' cannot be read"
    rejected(on_pairs(pairs, root=str(tmp_path / "none")), tmp_path / "run", *words)


def test_set_up_tries_the_records_of_evaluators(pairs: Path, tmp_path: Path) -> None:
    test = recipe.entry(configs.Retrieval(), data=configs.Pairs(path=str(pairs), text="title"))
    rejected(on_pairs(pairs, test=test), tmp_path / "run", "pairs has no column 'title'")


def test_set_up_reads_all_labels(pairs: Path, tmp_path: Path) -> None:
    lines = [{"image": "1.png", "kind": kind} for kind in (0, 1, 2)]
    labels = pairs.with_name("labels.jsonl")
    labels.write_text("\n".join(map(json.dumps, lines)))
    own = configs.Pairs(path=str(labels), text="")
    kinds = recipe.entry(
        configs.ZeroShot(), data=own, label="kind", classes=("a", "b"), prompts=("{}",)
    )
    words = ["labels, record 2: label column 'kind' is 2", "2 classes"]
    rejected(on_pairs(pairs, kinds=kinds), tmp_path / "run", *words)


def test_build_model_rejects_a_small_word_table() -> None:
    config = tiny(towers__text__vocab_size=40)
    mesh = parallel.make_mesh(config, ONE)
    with pytest.raises(UserError, match=r"config\.towers\.text\.vocab_size is 40.* has 41 ids"):
        build_model(config, mesh, vocab_size=41, total_steps=1)
    parts = build_model(config, mesh, vocab_size=40, total_steps=1)
    assert parts.abstract.params["text"]["token_embedding"].shape == (40, 16)


@pytest.mark.parametrize("content", [b"\xff\xfe", b'{"model": 1}', "x", -1])
def test_set_up_rejects_a_broken_tokenizer(tmp_path: Path, content: bytes | str | int) -> None:
    set_up(tiny(), tmp_path, ONE)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')  # a run has begun
    kept = tmp_path / "tokenizer.json"
    whole = kept.read_bytes()
    if not isinstance(content, bytes):  # the id of its padding
        changed = json.loads(whole)
        changed["padding"]["pad_id"] = content
        content = json.dumps(changed).encode()
    kept.write_bytes(content)
    rejected(tiny(), tmp_path, f"Delete {kept} to create it again", "newest checkpoint")
    kept.unlink()
    set_up(tiny(), tmp_path, ONE)
    assert kept.read_bytes() == whole


@pytest.mark.parametrize(("count", "warned"), [(15, True), (16, False)])
def test_summary_warns_if_the_batch_is_larger_than_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, warned: bool
) -> None:
    config = tiny(data__count=count, optimizer__schedule__warmup_steps=2)
    summary.log_summary(set_up(config, tmp_path, ONE))
    said = capsys.readouterr().out
    assert "image 2 x 4 (oblique), text 2 x 4 (oblique)" in said
    assert "cosine, peak 0.002, 6.7% of it at the last step" in said
    assert ("config.batch_size 16 is more than the 15 records" in said) == warned
    assert ("warning" in said) == warned


def test_summary_counts_hard_negatives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary.log_summary(set_up(texts(batch_size=16), tmp_path, ONE))
    assert "16 global, 16 a device, 47 negatives a query" in capsys.readouterr().out


@pytest.mark.slow
def test_run_without_an_intact_checkpoint_starts_from_scratch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny(total_steps=3, checkpoint_every=2)
    train(config, tmp_path, ONE)
    rows = (tmp_path / "metrics.jsonl").read_bytes()
    first = results(tmp_path)["params_sha256"]
    (tmp_path / "metrics.jsonl.old").write_text("of an earlier accident")
    for folder in (tmp_path / "checkpoints").iterdir():
        file = random.Random(0).choice(sorted(p for p in folder.rglob("*.json")))
        file.write_bytes(b"x")
    capsys.readouterr()
    train(config, tmp_path, ONE)
    said = "".join(capsys.readouterr())
    assert "checkpoints/2 is damaged" in said
    assert "checkpoints/3 is damaged" in said
    assert "no intact checkpoint: starting from step 0" in said
    assert (tmp_path / "metrics.jsonl.old").read_text() == "of an earlier accident"
    assert (tmp_path / "metrics.jsonl.old+").read_bytes() == rows
    assert sorted(losses(tmp_path)) == [1, 2, 3]
    assert results(tmp_path)["params_sha256"] == first
    assert results(tmp_path)["resumed_from"] is None


def test_first_process_computes_the_fingerprints_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[str] = []
    readers: Any = {
        name: SimpleNamespace(
            fingerprint=lambda name=name: reads.append(name) or name, field=ImageField()
        )
        for name in ("a", "")
    }
    source, rules = SceneRecords("test", count=4), {RULES: str(VERSION)}
    found = fingerprints(readers, source)
    assert found.pop(TEXTS)
    assert found == {"a": "a"} | rules
    assert len(reads) == 2
    heard: list[str] = []
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(distributed, "broadcast", lambda word: heard.append(word) or "of the first")
    names = ("a", "", ROWS, TEXTS, IMAGES)
    assert fingerprints(readers, source) == dict.fromkeys(names, "of the first") | rules
    assert (len(reads), heard) == (2, [""] * 6)
    rows = Records(Rows([{"captions": "other rows than those of process 0"}], "rows"), image=())
    mixed = MixedSource({"a": source, "b": rows}, {"a": 1, "b": 1})
    with pytest.raises(UserError, match=r"process 1 reads other rows .* the source of rows, row 1"):
        fingerprints({}, mixed)
