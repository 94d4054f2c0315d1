"""Vectors of all captions of a data set: encoded or copied, resumed, checked."""

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
from tests.interop.test_model import minilm

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
    (tmp_path / "lines.txt").write_text("\n".join(map(str, texts)) + "\n")
    vectors = np.random.default_rng(0).normal(size=(len(texts), 3))
    np.save(tmp_path / "v.npy", vectors)
    out = tmp_path / "a.npy"
    paths = str(tmp_path / "v.npy"), str(tmp_path / "lines.txt")
    assert targets.take(*paths, texts, out) == 3
    np.testing.assert_array_equal(np.load(out), vectors.astype(np.float32))
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


VECTORS = np.ones((len(TEXTS), 3), np.float16)
LINES = "\r\n".join(text.replace(" ", "  ", 1) for text in TEXTS)
NAN = np.where(np.arange(len(TEXTS))[:, None] == 9, np.nan, 1.0)


@pytest.mark.parametrize(
    ("vectors", "lines", "words"),
    [
        (VECTORS[:-1], LINES, rf"--vectors .*v\.npy has {len(TEXTS) - 1} rows, but the data have"),
        (VECTORS, LINES + "\nmore", rf"--captions .*\.txt has {len(TEXTS) + 1} rows, but the data"),
        (VECTORS, "\n".join(TEXTS[::-1]), r"lines\.txt, line 1, is '.*', but this caption of the"),
        (NAN, LINES, r"The vector of caption 9 \('.*'\), from .*v\.npy, is not finite"),
        (VECTORS[0], LINES, r"contains float16 \[3\]"),
        (VECTORS.astype(int), LINES, r"contains int64 \[.*, 3\]"),
        (None, LINES, r"v\.npy cannot be read \(No such file or directory\); give another in"),
        (VECTORS, None, r"Cannot read --captions .*lines\.txt: No such file"),
    ],
)
def test_take_rejects_vectors_that_do_not_fit(
    tmp_path: Path, vectors: Any, lines: Any, words: str
) -> None:
    if vectors is not None:
        np.save(tmp_path / "v.npy", vectors)
    if lines is not None:
        (tmp_path / "lines.txt").write_bytes(lines.encode())
    paths = str(tmp_path / "v.npy"), str(tmp_path / "lines.txt")
    with pytest.raises(UserError, match=words):
        targets.take(*paths, TEXTS, tmp_path / "a.npy")
    assert not (tmp_path / "a.npy").exists()


def test_targets_reject_fields_and_encoders_that_do_not_fit(tmp_path: Path) -> None:
    two = tiny(**lexical_texts())
    with pytest.raises(UserError, match="Add --field"):
        targets.text_field(two)
    assert targets.text_field(two, "document") == "document"
    with pytest.raises(UserError, match="--field is 'image'"):
        targets.text_field(tiny(), "image")
    with pytest.raises(UserError, match="runs/b is lexical in 'query'"):
        targets.encode(untrained(two, batch_size=8), "query", TEXTS, tmp_path / "a.npy", "runs/b")


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
        (["--data=x", "--out=a.npy"], "Add one of --encoder, --vectors"),
        (["--data=x", "--vectors=v.npy", "--out=a.npy"], "--vectors needs --captions"),
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
