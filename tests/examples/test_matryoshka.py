"""examples/matryoshka.py: a loss around a loss, killed, resumed, edited, moved and loaded."""

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.batch import Batch, Reps
from big_retrieval.inference.load import load
from big_retrieval.losses.context import Context
from big_retrieval.losses.contrastive import contrastive_loss
from big_retrieval.losses.pairwise import Negatives, PairBatch
from big_retrieval.similarity import TOPOLOGIES
from tests.examples.helpers import (
    SHALLOW,
    assert_evaluated_alike,
    copied,
    example,
    ran,
    trained,
    without_own_parts,
)
from tests.helpers import rows, tiny

pytestmark = pytest.mark.slow

FLAGS = ["--config.checkpoint_every=2", "--config.log_every=1", "--config.losses.main.dims=(16,4)"]
FLAGS += ["--config.losses.main.factors=(1.0,0.5)", SHALLOW]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a copy of the example, whole, and the same stopped behind step 2 of 3."""
    folder = tmp_path_factory.mktemp("own")
    config = copied("matryoshka", folder, "matryoshka")
    trained(config, folder / "run", *FLAGS, steps=3)
    trained(config, folder / "stopped", "--config.stop_after=2", *FLAGS, steps=3)
    return folder


def test_matryoshka_loss_is_sum_over_prefixes() -> None:
    m = example("matryoshka")
    rng = np.random.default_rng(0)
    raw = {name: jnp.asarray(rng.normal(size=(6, 1, 8)), jnp.float32) for name in ("text", "image")}
    reps = Reps(embeddings={name: TOPOLOGIES["sphere"].project(x) for name, x in raw.items()})
    batch = Batch(fields={n: {} for n in raw}, valid=jnp.ones(6, bool), document_id=jnp.arange(6))
    loss = m.Matryoshka(dims=(8, 3), factors=(1.0, 0.25))
    scalars = {"logit_scale": jnp.asarray(1.0)}
    value, metrics = loss(Context(reps, batch, tiny(), scalars=scalars))
    expected = 0.0
    for dim, factor in ((8, 1.0), (3, 0.25)):
        text, image = (TOPOLOGIES["sphere"].project(raw[n][..., :dim]) for n in ("text", "image"))
        each = contrastive_loss(PairBatch(text, image, TOPOLOGIES["sphere"], np.e))[0]
        expected += factor * float(each)
        assert float(metrics[f"loss_{dim}"]) == pytest.approx(float(each), rel=1e-5)
    assert float(value) == pytest.approx(expected, rel=1e-5)


def test_hard_negatives_have_prefixes_too() -> None:
    m, sphere = example("matryoshka"), TOPOLOGIES["sphere"]
    rng = np.random.default_rng(0)
    shapes = {"text": (6, 1, 8), "image": (6, 1, 8), "extra": (6, 2, 1, 8)}
    raw = {n: jnp.asarray(rng.normal(size=shape), jnp.float32) for n, shape in shapes.items()}
    embeddings = {name: sphere.project(x) for name, x in raw.items()}
    negatives = Reps(embeddings={"image": embeddings.pop("extra")})
    batch = Batch(
        fields={n: {} for n in embeddings}, valid=jnp.ones(6, bool), document_id=jnp.arange(6),
        negatives_valid=jnp.ones((6, 2), bool),
    )  # fmt: skip
    loss = m.Matryoshka(dims=(3,), factors=(1.0,))
    scalars = {"logit_scale": jnp.asarray(1.0)}
    reps = Reps(embeddings=embeddings, negatives=negatives)
    value, _ = loss(Context(reps, batch, tiny(), scalars=scalars))
    cut = {name: sphere.project(x[..., :3]) for name, x in raw.items()}
    pairs = PairBatch(cut["text"], cut["image"], sphere, np.e, negatives=Negatives(cut["extra"]))
    expected, _ = contrastive_loss(pairs)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)


def test_matryoshka_has_metrics_and_logit_scale_of_inner_loss(run: Path) -> None:
    row = next(row for row in rows(run / "run") if "loss" in row)
    assert row["loss"] == pytest.approx(row["loss_16"] + 0.5 * row["loss_4"], rel=1e-6)
    assert row["logit_scale_16"] == row["logit_scale_4"]
    saved = json.loads((run / "run" / "config.json").read_text())
    assert saved["losses"]["main"]["inner"]["logit_scale"]["init"] == 5.0
    assert saved["plugins"]["loss/own_matryoshka"]["file"] == str(run / "own_matryoshka.py")


def test_resume_rejects_an_edited_file(run: Path, tmp_path: Path) -> None:
    """Resumed runs of the example: test_resume."""
    config = run / "own_matryoshka.py"
    shutil.copytree(run / "stopped", tmp_path / "edited")
    before = config.read_text()
    config.write_text(before.replace("total + factor * value", "total + 2 * factor * value"))
    try:
        done = trained(config, tmp_path / "edited", *FLAGS, steps=3, status=2)
    finally:
        config.write_text(before)
    words = f"{config} (loss/own_matryoshka) has changed since "
    assert f"{words}{tmp_path / 'edited'} was written. Restore the file" in done.stderr


def test_load_needs_no_file_of_matryoshka(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss is needed to train, and by nothing else."""
    moved = shutil.copytree(run / "run", tmp_path / "moved")
    with_file = load(moved).encode_texts(["a small red circle"])
    without_own_parts(monkeypatch, "loss")
    model = load(moved)
    np.testing.assert_array_equal(model.encode_texts(["a small red circle"]), with_file)
    ran("evaluate", f"--run={moved}")
    assert_evaluated_alike(moved, run / "run")


MISTAKES = [
    ("--config.losses.main.dims=(256,)", "config.losses.main.dims is (256,); the embeddings have"),
    ("--config.losses.main.factors=(1.0,)", "config.losses.main.factors has 1 numbers for 3 dims"),
    ("--config.losses.main.inner.type=sigmod", "it must be one of 'contrastive'"),
    ("--config.losses.main.inner.logit_scale.init=200.0", "config.losses.main.inner.logit_scale."),
]


@pytest.mark.parametrize(("flag", "words"), MISTAKES)
def test_mistakes_are_one_sentence(flag: str, words: str, run: Path) -> None:
    done = trained(run / "own_matryoshka.py", Path("/nowhere"), flag, status=2)
    assert words in done.stderr
