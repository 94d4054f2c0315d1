"""Several losses in one run: weights, constraints, and a loss with a module of its own."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.config.checks import check
from big_retrieval.inference import load
from big_retrieval.inference.saved import find, restore_params
from big_retrieval.losses.context import Context, Result
from big_retrieval.losses.objective import make_objective
from big_retrieval.train.loop import train
from big_retrieval.train.step import LOGGED
from tests.helpers import mesh_keys, results, rows, tiny, user_error
from tests.train.runs import ALL_AXES, ONE, assert_same_run

pytestmark = pytest.mark.usefixtures("one_model")


@configs.register("loss")
@dataclass(frozen=True)
class Decode(configs.Loss):
    """How well a module of its own guesses the colour of an image from the text's embedding."""

    type: Literal["test_decode"] = "test_decode"
    width: int = 8

    def module(self, config: configs.Config) -> nn.Module:
        return Decoder(self.width)

    def __call__(self, context: Context) -> Result:
        """The mean squared error over the global batch."""
        made = context.output
        return jnp.mean(jnp.square(made["guess"] - made["colour"])), {}


class Decoder(nn.Module):
    """Mean colour [b, 3] of images from texts."""

    width: int

    @nn.compact
    def __call__(self, reps: Any, fields: Mapping[str, Any], *, train: bool, rows: Any) -> Any:
        """Guess and truth."""
        flat = reps.embeddings["text"].reshape(len(reps.embeddings["text"]), -1)
        guess = nn.Dense(3)(nn.relu(nn.Dense(self.width)(flat)))
        colour = jnp.mean(fields["image"]["pixels"].astype(jnp.float32) / 255, axis=(1, 2))
        return {"guess": guess, "colour": colour}


BOUND = 0.08  # between what the decoder starts at and what it reaches
CONSTRAINT = configs.Constraint(bound=BOUND, rate=0.5)
BOUNDED: dict[str, Any] = {"losses__decode": recipe.entry(Decode(), constraint=CONSTRAINT)}
WEIGHTED: dict[str, Any] = {"losses__decode": recipe.entry(Decode(), weight=0.5)}


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a constraint on one device."""
    workdir = tmp_path_factory.mktemp("single")
    train(tiny(**BOUNDED), workdir, ONE)
    return workdir


def multipliers(workdir: Path, rate: float) -> Iterator[dict[str, float]]:
    """What a run should have logged, from its losses and the recursion in numpy."""
    raw, momentum, above, in_a_row = 1.0, 0.0, 0, 0
    for number, row in enumerate((row for row in rows(workdir) if "loss" in row), start=1):
        value = row["decode/loss"]
        effective = max(0.0, min(100.0, raw))
        total = row["main/loss"] + effective * (value / BOUND - 1)
        gradient = value / BOUND - 1
        momentum = gradient if number == 1 else 0.9 * momentum + 0.1 * gradient
        raw += rate * momentum
        above += value > BOUND
        in_a_row = in_a_row + 1 if value > BOUND else 0
        yield {
            "loss": total,
            "decode/multiplier_raw": raw,
            "decode/multiplier": max(0.0, min(100.0, raw)),
            "decode/violations": above / number,
            "decode/violated_for": in_a_row,
        }


@pytest.mark.slow
def test_a_constraint_is_ascended_and_logged(single: Path) -> None:
    logged = [row for row in rows(single) if "loss" in row]
    for row, expected in zip(logged, multipliers(single, 0.5), strict=True):
        for key, value in expected.items():
            assert row[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key
    assert 0 < logged[-1]["decode/violations"] <= 1


@pytest.mark.slow
def test_the_module_learns_and_is_not_part_of_the_model(single: Path) -> None:
    logged = [row["decode/loss"] for row in rows(single) if "loss" in row]
    assert logged[-1] < logged[0]
    saved, model = restore_params(find(single)), load.load(single)
    assert "losses" not in saved
    # The run has no average, so the parameters themselves are taken.
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(model.weights), saved)
    assert np.isfinite(model.encode_texts(["a small red circle"])).all()
    assert json.loads((single / "config.json").read_text())["losses"]["decode"]["width"] == 8
    # All losses' metrics have prefixes here, so the other names are the trainer's.
    assert {name for name in results(single) if "/" not in name} <= LOGGED


def test_a_bound_that_is_not_reached_is_told_and_what_to_change() -> None:
    limits = {"bound": 0.2, "warn_after": 50, "max": 5.0}
    entry = recipe.entry(Decode(), constraint=configs.Constraint(**limits))
    objective = make_objective(tiny(losses__decode=entry))

    def told(steps: int, multiplier: float) -> list[str]:
        found = {"loss": 0.512, "violated_for": steps, "multiplier": multiplier}
        return list(objective.warnings({f"decode/{key}": x for key, x in found.items()}))

    assert not told(49, 4.9)
    assert not told(0, 5.0)  # within the bound again; lambda has only to come down
    (sentence,) = told(50, 4.9)
    assert "the loss 'decode' is 0.512 and was above its bound 0.2 in the last 50 steps" in sentence
    assert "with a multiplier of 4.9. Raise config.losses.decode.constraint.bound" in sentence
    (sentence,) = told(7, 5.0)
    assert "with a multiplier of 5 (the maximum). Raise" in sentence


RING = {**mesh_keys(data=4, fsdp=2), "losses__main__exchange": "ring"}
MESHES = [{"microbatch": 8, **RING}, {"microbatch": 8}, ALL_AXES]


@pytest.mark.slow
@pytest.mark.parametrize("changes", MESHES)
def test_slices_and_devices_change_nothing(
    single: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    meshed = any(key.startswith("mesh") for key in changes)
    train(tiny(**BOUNDED, **changes), tmp_path, None if meshed else ONE)
    one = [[row[k] for k in ("loss", "decode/multiplier_raw")] for row in rows(single)]
    many = [[row[k] for k in ("loss", "decode/multiplier_raw")] for row in rows(tmp_path)]
    np.testing.assert_allclose(many, one, rtol=2e-5)


@pytest.mark.slow
def test_resumed_is_uninterrupted(single: Path, tmp_path: Path) -> None:
    """With the multiplier, its momentum and its count of violations."""
    train(tiny(stop_after=5, **BOUNDED), tmp_path, ONE)
    train(tiny(**BOUNDED), tmp_path, ONE)
    assert_same_run(tmp_path, single)
    last = [[row for row in rows(x) if "loss" in row][-1] for x in (tmp_path, single)]
    keys = ("decode/multiplier_raw", "decode/violations")
    assert [last[0][k] for k in keys] == [last[1][k] for k in keys]


@pytest.mark.slow
def test_weights_are_factors_and_one_more_loss_changes_no_drawn_parameter(tmp_path: Path) -> None:
    """The first step's main loss is the same with and without it, bit for bit."""
    train(tiny(total_steps=2, **WEIGHTED), tmp_path / "two", ONE)
    train(tiny(total_steps=1), tmp_path / "one", ONE)
    for row in (row for row in rows(tmp_path / "two") if "loss" in row):
        expected = row["main/loss"] + 0.5 * row["decode/loss"]
        assert row["loss"] == pytest.approx(expected, rel=1e-6)
    first = [next(row for row in rows(tmp_path / x) if "loss" in row) for x in ("two", "one")]
    assert first[0]["main/loss"] == pytest.approx(first[1]["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"losses": {}}, "config.losses is empty: give it a loss"),
        ({"losses__main__weight": -1.0}, "config.losses.main.weight is -1.0; it must be positive"),
        (
            {"losses__main__weight": 2.0, "losses__main__constraint__bound": 1.0},
            "config.losses.main has a weight (2.0) and a constraint.bound (1.0)",
        ),
        ({"losses__main__constraint__bound": 1.0}, "config.losses are all constraints"),
        ({"losses__main__constraint__bound": 0.0}, "constraint.bound is 0.0; it must be positive"),
        ({"losses__main__constraint__rate": 0.0}, "constraint.rate is 0.0; it must be positive"),
        ({"losses__main__constraint__momentum": 1.0}, "momentum is 1.0; it must be at least 0 and"),
        ({"losses__main__constraint__max": -1.0}, "max is -1.0; it must be above config.losses."),
        ({"losses__main__constraint__start": 101.0}, "start is 101.0; it must be from config.los"),
        ({"losses__main__query": ("image",)}, "config.losses.main.query: 'image' is not a query field"),
        (
            {"losses__main__topology": "sphear"},
            "config.losses.main.topology: topology 'sphear' is unknown (did you mean 'sphere'?)",
        ),
    ],
)
def test_mistakes_are_one_sentence(changes: dict[str, Any], words: str) -> None:
    with user_error(words):
        check(tiny(**changes))
