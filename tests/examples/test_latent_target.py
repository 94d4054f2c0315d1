"""examples/latent_target.py: a decoder with target vectors, by weight and as a constraint."""

import json
from pathlib import Path

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.data.build import make_source
from big_retrieval.data.fields.arrays import save_store, texts_sha256
from big_retrieval.inference.load import load
from tests.examples.helpers import SHALLOW, copied, example, trained
from tests.helpers import in_process, losses, rows

FLAGS = ["--config.log_every=1", "--config.checkpoint_every=2", SHALLOW]
LATENT = "latent_target"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps with the constraint, by a copy in another folder."""
    folder = tmp_path_factory.mktemp("own")
    done = trained(copied(LATENT, folder, LATENT), folder / "run", *FLAGS, steps=4)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_multiplier_follows_the_loss(run: Path) -> None:
    logged = [row for row in rows(run / "run") if "loss" in row]
    raw = 1.0
    for row in logged:
        total = row["main/loss"] + raw * (row["target/loss"] / 0.2 - 1)
        assert row["loss"] == pytest.approx(total, rel=1e-4)
        raw = row["target/multiplier_raw"]
    first = 1 + 5e-3 * (logged[0]["target/loss"] / 0.2 - 1)  # the first step is not dampened
    assert logged[0]["target/multiplier_raw"] == pytest.approx(first, rel=1e-5)
    assert logged[-1]["target/violations"] == 1.0


@pytest.mark.slow
def test_interrupted_in_slices_on_eight_devices(run: Path, tmp_path: Path) -> None:
    """Goes on with multiplier and decoder; losses as on one device, to 1e-5."""
    config = run / "own_latent_target.py"
    flags = [*FLAGS, "--config.microbatch=8"]
    for stop in ("--config.stop_after=3", "--config.stop_after=4"):
        done = trained(config, tmp_path, *flags, stop, steps=4)
        assert done.returncode == 0, done.stderr
    one, many = losses(run / "run"), losses(tmp_path)
    np.testing.assert_allclose([many[x] for x in one], list(one.values()), rtol=1e-5)


def test_models_are_used_without_decoder_and_targets(run: Path) -> None:
    model = load(run / "run")
    assert "losses" not in model.weights
    assert np.isfinite(model.encode_texts(["a small red circle"])).all()
    done = in_process("evaluate", f"--run={run / 'run'}")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_by_weight(run: Path, tmp_path: Path) -> None:
    flags = ["--config.losses.target.weight=2.0", "--config.losses.target.constraint.bound=None"]
    done = trained(run / "own_latent_target.py", tmp_path, *FLAGS, *flags)
    assert done.returncode == 0, done.stderr
    for row in (row for row in rows(tmp_path) if "loss" in row):
        assert row["loss"] == pytest.approx(row["main/loss"] + 2 * row["target/loss"], rel=1e-5)


def test_its_vectors_are_those_of_the_captions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = example(LATENT)
    monkeypatch.setattr(module, "RECORDS", 3)
    module.main(str(tmp_path / "targets.npy"))
    found = np.load(tmp_path / "targets.npy", allow_pickle=False)
    assert found.shape == (15, module.DIM)  # five captions a record
    texts = make_source(configs.Scenes(count=3)).captions()
    beside = json.loads((tmp_path / "targets.texts.json").read_text())
    assert beside == {"count": 15, "sha256": texts_sha256(texts)}
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    red, again, blue = (module.vector_of(x) for x in ("a red cat", "cat a red", "a blue dog"))
    assert red @ again == pytest.approx(1, rel=1e-5)
    assert red @ blue < 0.9


def test_targets_that_do_not_match_the_captions(run: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "few.npy", np.zeros((7, 64), np.float32))
    config, flags = run / "own_latent_target.py", ["--config.fields.target.generated=False"]
    done = trained(
        config, tmp_path / "a", *flags, f"--config.fields.target.file={tmp_path / 'few.npy'}"
    )
    assert done.returncode == 2
    assert "few.npy has 7 rows for 500 texts of 'text'" in done.stderr
    save_store(tmp_path / "others.npy", np.zeros((500, 64), np.float32), ["a"] * 500)
    done = trained(
        config, tmp_path / "d", *flags, f"--config.fields.target.file={tmp_path / 'others.npy'}"
    )
    assert done.returncode == 2
    assert "others.npy was made from other texts than those of 'text' of scenes" in done.stderr
    np.save(tmp_path / "wide.npy", np.zeros((500, 65), np.float32))
    done = trained(
        config, tmp_path / "b", *flags, f"--config.fields.target.file={tmp_path / 'wide.npy'}"
    )
    assert done.returncode == 2
    assert "wide.npy holds float32 [500, 65], but float32 [rows, 64] is wanted" in done.stderr
    done = trained(config, tmp_path / "c", "--config.losses.target.target=text")
    assert done.returncode == 2
    assert "config.losses.target.target is 'text', no field of the side 'target'" in done.stderr
