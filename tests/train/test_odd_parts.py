"""Unusual user-defined parts: metric names, dicts as keys, losses that read targets."""

import dataclasses
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.config import recipe
from big_retrieval.config.checks import check
from big_retrieval.data.damage import record_at
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals import evaluators as evals
from big_retrieval.losses.context import Context, Result
from big_retrieval.train.build import BuiltModel, build_model
from big_retrieval.train.run import set_up
from big_retrieval.train.step import abstract_batch
from tests.helpers import raw_config, tiny

pytestmark = pytest.mark.usefixtures("one_model")


@configs.register("loss")
@dataclass(frozen=True)
class Odd(configs.Loss):
    """A loss with metrics of any names, whose module reads a target."""

    type: Literal["test_odd"] = "test_odd"
    metrics: tuple[str, ...] = ()
    target: str = ""
    factors: dict[str, float] = field(default_factory=dict)
    topology: dict[str, str] = field(default_factory=dict)  # like a key of the package's losses

    def module(self, config: configs.Config) -> nn.Module | None:
        return TargetReader(self.target) if self.target else None

    def __call__(self, context: Context) -> Result:
        value = jnp.mean(context.reps.embeddings["text"])
        if self.target:
            value += jnp.mean(context.output)
        return value, dict.fromkeys(self.metrics, value)


class TargetReader(nn.Module):
    """Linear map [b, 3] of a target, 0 where the row has none."""

    target: str

    @nn.compact
    def __call__(self, reps: Any, fields: Mapping[str, Any], *, train: bool, rows: Any) -> Any:
        target = fields[self.target]
        return nn.Dense(3)(target["values"]) * target["present"][:, None]


def built(**changes: Any) -> BuiltModel:
    """The model of a tiny config on one device, with its step traced."""
    config = tiny(**changes)
    check(config)
    mesh = parallel.make_mesh(config, jax.devices()[:1])
    parts = build_model(config, mesh, vocab_size=64, total_steps=8)
    jax.eval_shape(parts.steps[0], parts.abstract, abstract_batch(config, mesh))
    return parts


@pytest.mark.parametrize(
    ("loss", "name", "bound"),
    [
        ("main", "loss", None), ("main", "devices", None),
        ("odd", "odd/loss", None), ("odd", "odd/multiplier", 0.2),
    ],
)  # fmt: skip
def test_metric_of_a_loss_cannot_replace_another_metric(
    loss: str, name: str, bound: float | None
) -> None:
    odd = Odd(metrics=(name.rpartition("/")[2],), constraint=configs.Constraint(bound=bound))
    losses = {} if loss == "main" else {"main": recipe.entry(configs.Contrastive())}
    with pytest.raises(UserError, match=f"returns the metric '{name}'"):
        built(losses={**losses, loss: recipe.entry(odd)})


def test_metric_must_be_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    vector = jnp.zeros(3)
    monkeypatch.setattr(Odd, "__call__", lambda self, _: (jnp.zeros(()), {"each": vector}))
    with pytest.raises(UserError, match=r"returns 'each' with the shape \(3,\)"):
        built(losses={"main": recipe.entry(Odd())})


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (jnp.zeros(()), "main returned a"),
        ((jnp.zeros(8), {}), r"main returned a loss of shape \(8,\)"),
    ],
)
def test_loss_must_return_a_scalar_and_metrics(
    monkeypatch: pytest.MonkeyPatch, result: Any, message: str
) -> None:
    monkeypatch.setattr(Odd, "__call__", lambda self, _: result)
    with pytest.raises(UserError, match=message):
        built(losses={"main": recipe.entry(Odd())})


def test_loss_that_reads_an_unknown_field_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "__call__", lambda self, context: context.reps.embeddings["txt"])
    words = r"losses.main: nothing is called 'txt' \(test_odd.*line .* the fields: image, text"
    with pytest.raises(UserError, match=words):
        built(losses={"main": recipe.entry(Odd())})


def test_scalar_name_with_a_slash_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "scalars", lambda self: {"a/b": 1.0})
    with pytest.raises(UserError, match=r"slash in its name \(\['scalars', 'main', 'a/b'\]\)"):
        built(losses={"main": recipe.entry(Odd())})


def test_module_of_a_loss_reads_targets_and_their_presence() -> None:
    target = configs.ArrayField(shape=(5,), column="goal", generated=True, optional=True)
    parts = built(losses__odd=recipe.entry(Odd(), target="goal"), fields__goal=recipe.entry(target))
    assert parts.abstract.params["losses"]["odd"]["Dense_0"]["kernel"].shape == (5, 3)


@configs.register("tower")
@dataclass(frozen=True)
class Weighted(configs.Tower):
    """A bag of words with keys that cannot be hashed."""

    type: Literal["test_weighted"] = "test_weighted"
    width: int = 8
    factors: dict[str, float] = field(default_factory=dict)
    pairs: tuple[dict[str, int], ...] = ()

    def reads(self, field: configs.Field) -> bool:
        return field.modality == "text"

    def build(self, vocab_size: int, fields: Any, **module: Any) -> nn.Module:
        return WeightedBag(self.width, self.factors, **module)


class WeightedBag(nn.Module):
    width: int
    factors: Mapping[str, float]
    dtype: Any

    @nn.compact
    def __call__(self, ids: Any, mask: Any, *, train: bool, rows: Any) -> Any:
        flags = nn.one_hot(ids, 64, dtype=self.dtype) * mask[..., None]
        return nn.Dense(self.width)(flags).mean(1, keepdims=True) * self.factors["a"]


def test_parts_with_dict_keys_are_hashed_and_compared() -> None:
    tower = recipe.entry(Weighted(), factors={"a": 0.5}, pairs=({"x": 1},))
    parts = built(towers__text=tower, towers__image__class_tokens=1)
    assert parts.model.forward_flops() > 0
    odd: Any = parts.config.towers["text"]
    assert hash(odd) == hash(dataclasses.replace(odd))
    assert odd != dataclasses.replace(odd, factors={"a": 0.25})
    assert len({odd, dataclasses.replace(odd, factors={"a": 0.25})}) == 2


def test_key_of_an_unsupported_type_is_rejected() -> None:
    @configs.register("loss")
    @dataclass(frozen=True)
    class Lists(Odd):
        type: Literal["test_lists"] = "test_lists"  # type: ignore
        numbers: list[int] = field(default_factory=list)

    @configs.register("loss")
    @dataclass(frozen=True)
    class Either(Odd):
        type: Literal["test_either"] = "test_either"  # type: ignore
        numbers: str | tuple[str, ...] = ()

    for part, hint in ((Lists(), r"list\[int\]"), (Either(), r"tuple\[str, \.\.\.\]")):
        with pytest.raises(UserError, match=rf"main\.numbers has the annotation {hint}"):
            tiny(losses={"main": recipe.entry(part)})


def test_dict_with_other_keys_than_text_is_rejected() -> None:
    raw = raw_config(losses={"main": recipe.entry(Odd())}).to_dict()
    raw["losses"]["main"]["factors"] = {3: 1.0}
    with pytest.raises(UserError, match=r"factors has keys of another type than str \(\[3\]\)"):
        configs.load(raw)


@configs.register("evaluator")
@dataclass(frozen=True)
class Ranks(configs.Evaluator):
    """An evaluator that reports if it gets a folder for rankings."""

    type: Literal["test_ranks"] = "test_ranks"
    data: configs.Source = field(default_factory=lambda: configs.Scenes(split="test", count=4))
    rankings: bool = True

    def run(self, context: Any, weights: Any) -> dict[str, float]:
        return {"asked": float(context.rankings is not None)}


def test_custom_evaluator_gets_a_folder_for_rankings(tmp_path: Any) -> None:
    config = tiny(evals={"odd": recipe.entry(Ranks(), rankings=False)})
    made = evals.make_evaluators(config, {}, {}, encoder=None)  # type: ignore
    asked = evals.with_rankings(made)
    found = [evals.run(each, {*each}, {}, None, tmp_path) for each in (made, asked)]
    assert found == [{"test_ranks/odd/asked": 0.0}, {"test_ranks/odd/asked": 1.0}]


def test_evaluators_with_one_folder_are_rejected() -> None:
    config = tiny(evals={"a b": recipe.entry(Ranks()), "a-b": recipe.entry(Ranks())})
    with pytest.raises(UserError, match=r"evals\.a-b and config\.evals\.a b write"):
        evals.make_evaluators(config, {}, {}, encoder=None)  # type: ignore


def test_record_at_adds_the_place_of_a_damaged_record() -> None:
    with pytest.raises(Damaged) as found, record_at("mine.csv, row 3"):
        raise Damaged("there is no colour")
    assert (found.value.place, found.value.why) == ("mine.csv, row 3", "there is no colour")
    assert str(found.value) == "mine.csv, row 3: there is no colour."
    assert pickle.loads(pickle.dumps(found.value)).args == found.value.args


def test_set_up_names_a_field_with_random_values(tmp_path: Path, said: list[str]) -> None:
    target = recipe.entry(configs.ArrayField(), shape=(5,), column="goal", generated=True)
    set_up(tiny(fields__goal=target), tmp_path, jax.devices()[:1])
    (line,) = [x for x in said if "random values" in x]
    assert line.startswith("config.fields.goal: random values if a record has no column 'goal'")
