"""Legal but unusual parts of users: names of metrics, dicts as keys, losses that read targets."""

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
    topology: dict[str, str] = field(default_factory=dict)  # a name that losses of the package have

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


@pytest.mark.parametrize("name", ["loss", "devices"])
def test_a_single_loss_cannot_replace_a_logged_number(name: str) -> None:
    with pytest.raises(UserError, match=f"returns the metric '{name}'"):
        built(losses={"main": recipe.entry(Odd(), metrics=(name,))})


@pytest.mark.parametrize(
    ("name", "constraint"),
    [("loss", {}), ("multiplier", {"bound": 0.2})],
)
def test_one_of_several_losses_cannot_replace_a_logged_number(
    name: str, constraint: dict[str, Any]
) -> None:
    odd = Odd(metrics=(name,), constraint=configs.Constraint(**constraint))
    with pytest.raises(UserError, match=f"returns the metric 'odd/{name}', but another metric"):
        built(losses__odd=recipe.entry(odd))


def test_a_metric_is_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    vector = jnp.zeros(3)
    monkeypatch.setattr(Odd, "__call__", lambda self, _: (jnp.zeros(()), {"each": vector}))
    with pytest.raises(UserError, match=r"returns 'each' with the shape \(3,\)"):
        built(losses={"main": recipe.entry(Odd())})


def test_a_slash_in_the_name_of_a_scalar_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "scalars", lambda self: {"a/b": 1.0})
    with pytest.raises(UserError, match=r"slash in its name \(\['scalars', 'main', 'a/b'\]\)"):
        built(losses={"main": recipe.entry(Odd())})


def test_a_losss_module_reads_targets_and_their_presence() -> None:
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


def test_keys_that_are_dicts_are_counted_and_compared() -> None:
    tower = recipe.entry(Weighted(), factors={"a": 0.5}, pairs=({"x": 1},))
    parts = built(towers__text=tower, towers__image__class_tokens=1)
    assert parts.model.forward_flops() > 0
    odd: Any = parts.config.towers["text"]
    assert hash(odd) == hash(dataclasses.replace(odd))
    assert odd != dataclasses.replace(odd, factors={"a": 0.25})
    assert len({odd, dataclasses.replace(odd, factors={"a": 0.25})}) == 2


def test_a_key_of_another_type_is_an_error_that_names_it() -> None:
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


def test_names_in_a_dict_are_text() -> None:
    raw = raw_config(losses={"main": recipe.entry(Odd())}).to_dict()
    raw["losses"]["main"]["factors"] = {3: 1.0}
    with pytest.raises(UserError, match=r"factors has keys of another type than str \(\[3\]\)"):
        configs.load(raw)


@configs.register("evaluator")
@dataclass(frozen=True)
class Ranks(configs.Evaluator):
    """An evaluator that says whether it gets a folder for rankings."""

    type: Literal["test_ranks"] = "test_ranks"
    data: configs.Source = field(default_factory=lambda: configs.Scenes(split="test", count=4))
    rankings: bool = True

    def run(self, context: Any, weights: Any) -> dict[str, float]:
        return {"asked": float(context.rankings is not None)}


def test_an_evaluator_of_a_users_own_is_asked_for_rankings(tmp_path: Any) -> None:
    config = tiny(evals={"odd": recipe.entry(Ranks(), rankings=False)})
    made = evals.make_evaluators(config, {}, {}, encoder=None)  # type: ignore
    asked = evals.with_rankings(made)
    found = [evals.run(each, {*each}, {}, None, tmp_path) for each in (made, asked)]
    assert found == [{"test_ranks/odd/asked": 0.0}, {"test_ranks/odd/asked": 1.0}]


def test_evaluators_that_would_share_a_folder_are_refused() -> None:
    config = tiny(evals={"a b": recipe.entry(Ranks()), "a-b": recipe.entry(Ranks())})
    with pytest.raises(UserError, match=r"evals\.a-b and config\.evals\.a b write to one folder"):
        evals.make_evaluators(config, {}, {}, encoder=None)  # type: ignore


def test_a_record_that_is_damaged_for_a_reason_gets_its_place_where_it_is_read() -> None:
    with pytest.raises(Damaged) as found, record_at("mine.csv, row 3"):
        raise Damaged("there is no colour")
    assert (found.value.place, found.value.why) == ("mine.csv, row 3", "there is no colour")
    assert str(found.value) == "mine.csv, row 3: there is no colour."
    assert pickle.loads(pickle.dumps(found.value)).args == found.value.args


def test_a_start_names_a_field_whose_values_are_made_up(tmp_path: Path, said: list[str]) -> None:
    target = recipe.entry(configs.ArrayField(), shape=(5,), column="goal", generated=True)
    set_up(tiny(fields__goal=target), tmp_path, jax.devices()[:1])
    (line,) = [x for x in said if "random values" in x]
    assert line.startswith("config.fields.goal: random values if a record has no column 'goal'")
