"""Several losses in one run: weights, constraints, and a loss with a module."""

import json
from collections.abc import Callable, Iterator, Mapping
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
from big_retrieval.losses.objective import Objective
from big_retrieval.train.loop import train
from big_retrieval.train.step import LOGGED
from tests.helpers import results, rows, tiny, user_error
from tests.train.runs import ALL_AXES, ONE

pytestmark = pytest.mark.usefixtures("one_model")


@configs.register("loss")
@dataclass(frozen=True)
class Decode(configs.Loss):
    """Error of a module that predicts the mean color of an image from the text's embedding."""

    type: Literal["test_decode"] = "test_decode"
    width: int = 8

    def module(self, config: configs.Config) -> nn.Module:
        return Decoder(self.width)

    def __call__(self, context: Context) -> Result:
        output = context.output
        return jnp.mean(jnp.square(output["guess"] - output["colour"])), {}


class Decoder(nn.Module):
    width: int

    @nn.compact
    def __call__(self, reps: Any, fields: Mapping[str, Any], *, train: bool, rows: Any) -> Any:
        flat = reps.embeddings["text"].reshape(len(reps.embeddings["text"]), -1)
        guess = nn.Dense(3)(nn.relu(nn.Dense(self.width)(flat)))
        colour = jnp.mean(fields["image"]["pixels"].astype(jnp.float32) / 255, axis=(1, 2))
        return {"guess": guess, "colour": colour}


BOUND = 0.08  # between the decoder's first and last loss
CONSTRAINT = configs.Constraint(bound=BOUND, rate=0.5)
BOUNDED: dict[str, Any] = {"losses__decode": recipe.entry(Decode(), constraint=CONSTRAINT)}
WEIGHTED: dict[str, Any] = {"losses__decode": recipe.entry(Decode(), weight=0.5)}


@pytest.fixture(scope="module")
def single(trained: Callable[..., Path]) -> Path:
    """A run with a constraint on one device."""
    return trained(tiny(**BOUNDED))


def multipliers(workdir: Path, rate: float) -> Iterator[dict[str, float]]:
    """Yields the expected rows of a run, from its losses and the recursion in numpy."""
    raw, momentum, above, in_a_row = 1.0, 0.0, 0, 0
    for number, row in enumerate(rows(workdir), start=1):
        value = row["decode/loss"]
        gradient = value / BOUND - 1
        total = row["main/loss"] + max(0.0, min(100.0, raw)) * gradient
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
def test_constraint_ascends_and_is_logged(single: Path) -> None:
    logged = rows(single)
    for row, expected in zip(logged, multipliers(single, 0.5), strict=True):
        assert {key: row[key] for key in expected} == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert 0 < logged[-1]["decode/violations"] <= 1


@pytest.mark.slow
def test_module_of_a_loss_learns_and_is_not_part_of_the_model(single: Path) -> None:
    logged = [row["decode/loss"] for row in rows(single)]
    assert logged[-1] < logged[0]
    saved, model = restore_params(find(single)), load.load(single)
    assert "losses" not in saved
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(model.weights), saved)
    assert np.isfinite(model.encode_texts(["a small red circle"])).all()
    assert json.loads((single / "config.json").read_text())["losses"]["decode"]["width"] == 8
    # All metrics of losses have prefixes here; the trainer's own names do not.
    assert {name for name in results(single) if "/" not in name} <= LOGGED


@pytest.mark.parametrize(
    ("steps", "multiplier", "words"),
    [
        (49, 4.9, None),
        (0, 5.0, None),  # within the bound again, while lambda is still at its maximum
        (50, 4.9, "above its bound 0.2 in the last 50 steps, with a multiplier of 4.9. Raise"),
        (7, 5.0, "in the last 7 steps, with a multiplier of 5 (the maximum). Raise"),
    ],
)
def test_unreached_bound_gives_a_warning(steps: int, multiplier: float, words: str | None) -> None:
    limits = {"bound": 0.2, "warn_after": 50, "max": 5.0}
    entry = recipe.entry(Decode(), constraint=configs.Constraint(**limits))
    metrics = {"loss": 0.512, "violated_for": steps, "multiplier": multiplier}
    objective = Objective(tiny(losses__decode=entry))
    messages = list(objective.warnings({f"decode/{key}": x for key, x in metrics.items()}))
    assert len(messages) == (words is not None)
    if words is not None:
        assert words in messages[0]
        assert "config.losses.decode.constraint.bound" in messages[0]


@pytest.mark.slow
def test_slices_on_a_mesh_equal_one_device(single: Path, tmp_path: Path) -> None:
    """Rows over eight devices, and resumed runs: test_combinations."""
    changes = {"microbatch": 8, "losses__main__exchange": "ring"}
    train(tiny(**BOUNDED, **ALL_AXES, **changes), tmp_path)
    one = [[row[k] for k in ("loss", "decode/multiplier_raw")] for row in rows(single)]
    many = [[row[k] for k in ("loss", "decode/multiplier_raw")] for row in rows(tmp_path)]
    np.testing.assert_allclose(many, one, rtol=2e-5)


@pytest.mark.slow
def test_weights_are_factors_and_another_loss_changes_no_drawn_parameter(tmp_path: Path) -> None:
    train(tiny(total_steps=2, **WEIGHTED), tmp_path / "two", ONE)
    train(tiny(total_steps=1), tmp_path / "one", ONE)
    for row in rows(tmp_path / "two"):
        expected = row["main/loss"] + 0.5 * row["decode/loss"]
        assert row["loss"] == pytest.approx(expected, rel=1e-6)
    first = [rows(tmp_path / name)[0] for name in ("two", "one")]
    assert first[0]["main/loss"] == pytest.approx(first[1]["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"losses": {}}, "config.losses is empty"),
        ({"losses__main__weight": -1.0}, "config.losses.main.weight is -1.0"),
        (
            {"losses__main__weight": 2.0, "losses__main__constraint__bound": 1.0},
            "config.losses.main has a weight (2.0) and a constraint.bound (1.0)",
        ),
        ({"losses__main__constraint__bound": 1.0}, "config.losses are all constraints"),
        ({"losses__main__constraint__bound": 0.0}, "constraint.bound is 0.0"),
        ({"losses__main__constraint__rate": 0.0}, "constraint.rate is 0.0"),
        ({"losses__main__constraint__momentum": 1.0}, "momentum is 1.0"),
        ({"losses__main__constraint__max": -1.0}, "max is -1.0"),
        ({"losses__main__constraint__start": 101.0}, "start is 101.0"),
        ({"losses__main__query": ("image",)}, "config.losses.main.query: 'image'"),
        ({"losses__main__topology": "sphear"}, "config.losses.main.topology"),
    ],
)
def test_check_rejects_impossible_losses(changes: dict[str, Any], words: str) -> None:
    with user_error(words):
        check(tiny(**changes))
