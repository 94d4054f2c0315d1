"""Vectors of all captions of a data set: encoded, resumed, checked."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import ArrayField, recipe, schema
from big_retrieval.data.build import make_readers, make_source
from big_retrieval.data.fields import stores
from big_retrieval.errors import UserError
from big_retrieval.inference.load import TrainedModel
from big_retrieval.mining import targets
from big_retrieval.train.build import untrained
from tests.helpers import in_process, lexical_texts, tiny
from tests.interop.folders import minilm

SCENES = configs.Scenes(count=6)
TEXTS = list(make_source(SCENES).captions())


@pytest.fixture(scope="module")
def model() -> TrainedModel:
    return untrained(tiny(), batch_size=8)


@pytest.fixture(autouse=True)
def _small_chunks_and_other_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(targets, "CHUNK", 8)
    yield
    stores._opened.cache_clear()


def test_encode_writes_a_vector_per_caption_in_order(model: TrainedModel, tmp_path: Path) -> None:
    out = tmp_path / "new" / "a.npy"
    width = targets.encode(model, "text", TEXTS, out, "runs/a")
    found = np.load(out)
    assert found.dtype == np.float32
    assert found.shape == (len(TEXTS), width)
    for number in (0, 11, len(TEXTS) - 1):
        alone = model.encode_texts([TEXTS[number]])
        np.testing.assert_allclose(found[number], alone.ravel(), rtol=1e-5, atol=1e-6)
    about = json.loads((tmp_path / "new" / "a.texts.json").read_text())
    assert (about["count"], about["encoder"]) == (len(TEXTS), "runs/a")
    assert not list(out.parent.glob("*.partial*"))


def test_killed_encode_resumes_with_equal_bytes(
    model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    whole, out, seen = tmp_path / "whole.npy", tmp_path / "a.npy", list[int]()
    targets.encode(model, "text", TEXTS, whole, "a")
    encode, parts = TrainedModel.encode_texts, -(-len(TEXTS) // 8)

    def killed(self: Any, texts: Any, field: str, **more: Any) -> Any:
        seen.append(len(texts))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return encode(self, texts, field, **more)

    monkeypatch.setattr(TrainedModel, "encode_texts", killed)
    with pytest.raises(KeyboardInterrupt):
        targets.encode(model, "text", TEXTS, out, "a")
    assert not out.exists()
    with (tmp_path / "a.npy.partial").open("ab") as file:
        file.write(b"half a row")
    kept = {path: path.read_bytes() for path in tmp_path.glob("a.npy.partial*")}
    targets.encode(model, "text", TEXTS, out, "a")
    assert out.read_bytes() == whole.read_bytes()
    assert len(seen) == 1 + parts  # the third was asked for twice
    assert any("resuming after the 16 captions" in line for line in said)
    for path, content in kept.items():
        path.write_bytes(content)
    targets.encode(model, "text", TEXTS[:-1], out, "a")  # of other captions: anew
    assert len(seen) == 1 + 2 * parts
    assert np.load(out).shape[0] == len(TEXTS) - 1


def aligned(out: Path, width: int, **changes: Any) -> configs.Config:
    field = recipe.entry(ArrayField(), shape=(width,), aligned_with="text", file=str(out))
    config = tiny(**changes)
    return configs.load({**schema.to_plain(config), "fields": {
        **schema.to_plain(config)["fields"], "target": field.to_dict()}})  # fmt: skip


def test_training_reads_targets_and_rejects_other_captions(tmp_path: Path) -> None:
    texts = targets.captions_of_config(tiny(data__count=6), "text")
    assert texts == TEXTS
    out = tmp_path / "a.npy"
    stores.save_store(out, np.zeros((len(texts), 3), np.float32), texts)
    config = aligned(out, 3, data__count=6)
    source = make_source(config.data)
    make_readers(config, None, source)["target"].check_files("config.fields.target", source)
    other = make_source(configs.Scenes(count=6, seed=1))
    with pytest.raises(UserError, match=r"a\.npy was not computed from 'text'"):
        make_readers(config, None, other)["target"].check_files("config.fields.target", other)
    told = targets.training_flags(config, "text", out, 3)
    assert shlex.split(told) == [
        f"--config.fields.target.file={out}", "--config.fields.target.shape=(3,)"
    ]  # fmt: skip
    assert targets.text_field(config) == "text"


def test_targets_reject_fields_and_encoders_that_do_not_fit(
    model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = tiny(**lexical_texts())
    with pytest.raises(UserError, match="Add --field"):
        targets.text_field(two)
    assert targets.text_field(two, "document") == "document"
    with pytest.raises(UserError, match="--field is 'image'"):
        targets.text_field(tiny(), "image")
    with pytest.raises(UserError, match="runs/b is lexical in 'query'"):
        targets.encode(untrained(two, batch_size=8), "query", TEXTS, tmp_path / "a.npy", "runs/b")
    nan = lambda self, texts, field, **more: np.full((len(texts), 1, 2), np.nan)  # noqa: E731
    monkeypatch.setattr(TrainedModel, "encode_texts", nan)
    with pytest.raises(
        UserError, match=r"The vector of caption 0 \('.*'\), from runs/c, is not fin"
    ):
        targets.encode(model, "text", TEXTS, tmp_path / "a.npy", "runs/c")
    assert not (tmp_path / "a.npy").exists()


def test_targets_command_encodes_with_a_published_encoder(tmp_path: Path) -> None:
    folder, data, out = minilm(), tmp_path / "pairs.jsonl", tmp_path / "a.npy"
    rows = [["This is an example sentence"], ["Each sentence is converted", "x"]]
    data.write_text("".join(json.dumps({"said": row}) + "\n" for row in rows))
    flags = f"--data={data}", "--text=said", f"--out={out}", "--batch_size=2"
    done = in_process("targets", *flags, f"--encoder={folder}")
    assert done.returncode == 0, done.stderr
    assert "3 vectors of 384 numbers in " in done.stdout
    assert "c.fields.target = recipe.entry(config.ArrayField(), shape=(384,), " in done.stdout
    found = np.load(out)
    assert found[0, :3] == pytest.approx([0.06766, 0.06350, 0.04871], abs=1e-5)  # published
    assert found[0] @ found[1] == pytest.approx(0.4046, abs=5e-5)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--encoder=x", "--out=a.npy"], "Add one of --config, --data"),
        (["--data=x", "--out=a.npy"], "--encoder is missing"),
        (["--data=x", "--field=f", "--out=a.npy"], "--field needs --config"),
        (["--config=quickstart", "--text=t", "--out=a.npy"], "--text needs --data"),
        (["--data=x", "--encoder=x", "--out=a"], "--out is 'a'; it must end with .npy"),
        (["--data=x", "--encoder=x"], "--out is missing: file to write, .npy"),
        (["--data=x", "--encoder=x", "--out=a.npy"], "--data: there is no file 'x'; check the"),
    ],
)
def test_targets_command_rejects_flags_that_do_not_go_together(
    flags: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = in_process("targets", *flags)
    assert done.returncode == 2
    assert re.search(re.escape(words), done.stderr), done.stderr
