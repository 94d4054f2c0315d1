"""Methods combined in one config: three steps on 1 and 8 devices agree to 1e-5 (float32)."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import Config, recipe
from big_retrieval.config.checks.fields import check_fields
from big_retrieval.data.batches import RecordSpec, train_batch, try_record
from big_retrieval.data.build import make_readers, make_source, make_tokenizer
from big_retrieval.data.order import Order
from big_retrieval.models.towers import make_model
from big_retrieval.train.loop import train
from tests.helpers import drawn, rows, tiny
from tests.train.runs import ONE, assert_same_run, train_in_parts
from tests.train.test_graded_training import graded
from tests.train.test_vdr_training import pictures, texts

pytestmark = pytest.mark.usefixtures("one_model")


def decoder(target: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """A target field and the loss that decodes it, as changes of a config."""
    field = recipe.entry(configs.ArrayField(), shape=(6,), generated=True, **target)
    latent = recipe.entry(configs.LatentTarget(), hidden=8, **keys)
    return {"fields__target": field, "losses__target": latent}


BOUND = {"constraint": configs.Constraint(bound=0.5, rate=0.5)}


def fields_constrained() -> Config:
    """Queries with two document fields; a decoder of their words has a bound."""
    words = recipe.entry(configs.InputTarget(), field="query", words=8, hidden=6, **BOUND)
    return graded(total_steps=3, losses__words=words)


def oblique_decoder() -> Config:
    """A decoder of all class tokens with a bound; the batch in slices."""
    changes = decoder({"aligned_with": "text"}, **BOUND)
    return tiny(total_steps=3, topology="oblique", microbatch=8, **changes)


def geodesic_triplet() -> Config:
    """Hardest negatives of one topology, with a contrastive loss of another."""
    triplet = recipe.entry(configs.Triplet(), topology="oblique", weight=0.3)
    return tiny(total_steps=3, topology="geodesic", losses__hardest=triplet)


def lexical_decoder() -> Config:
    """VDR's loss over images and texts; the mean of the text's positions is decoded."""
    return pictures(total_steps=3, **decoder({"aligned_with": "text"}, **BOUND))


def negatives_sigmoid() -> Config:
    """Hard negatives of lexical texts in the main loss, and a sigmoid loss."""
    return texts(total_steps=3, losses__second=recipe.entry(configs.Sigmoid(), weight=0.1))


def lexical_beside_dense() -> Config:
    """Two heads on each tower: words for VDR's loss, one vector for a contrastive one."""
    lexical = pictures(total_steps=3).fields
    dense = recipe.entry(configs.Projection(), dim=8, pool="mean")
    given: dict[str, Any] = {}
    for name, field in lexical.items():
        given[f"fields__{name}_words"] = recipe.entry(field, same_input_as=name)
        given[f"fields__{name}__head"] = dense
    sides: dict[str, Any] = {"query": ("text_words",), "document": ("image_words",)}
    vdr = configs.Vdr(top_k=6, **sides, logit_scale=configs.LogitScale(init=2.0))
    sides = {"query": ("text",), "document": ("image",)}
    changes = {"losses__main": recipe.entry(configs.Contrastive(**sides)), "topology": "sphere"}
    data = recipe.entry(configs.Scenes(split="test", count=20))
    names = {"query": "text_words", "document": "image_words"}
    evals = {
        "dense": recipe.entry(configs.Retrieval(), data=data),
        "words": recipe.entry(configs.Retrieval(), data=data, **names, modes=("bag",)),
    }
    given |= {**changes, "losses__words": recipe.entry(vdr, weight=0.2), "evals": evals}
    return pictures(total_steps=3, **given)


CASES: list[Callable[[], Config]] = [
    oblique_decoder, lexical_beside_dense, fields_constrained, geodesic_triplet, lexical_decoder,
    negatives_sigmoid,
]  # fmt: skip


DECODERS = (oblique_decoder, fields_constrained, lexical_decoder)


@pytest.mark.slow
def test_two_heads_share_the_input_and_the_pass_of_a_tower() -> None:
    config = lexical_beside_dense()
    source = make_source(config.data)
    readers = make_readers(config, make_tokenizer(config, source), source)
    batch = train_batch(source, RecordSpec(readers), Order(len(source), 0), 8, np.arange(8), 0)
    try_record(source, {"text_words": readers["text_words"]})  # an evaluation may read it alone
    for name in ("image", "text"):
        jax.tree.map(np.testing.assert_array_equal, batch[name], batch[f"{name}_words"])
    alone = {
        name: dataclasses.replace(field, same_input_as="")  # type: ignore
        for name, field in config.fields.items()
    }
    shared, separate = (
        make_model(dataclasses.replace(config, fields=fields), 128)
        for fields in (config.fields, alone)
    )
    inputs = shared.example_inputs()
    params = jax.eval_shape(shared.init, jax.random.key(0), inputs)
    lines = [len(jax.make_jaxpr(x.apply)(params, inputs).eqns) for x in (shared, separate)]
    assert lines[0] < 0.7 * lines[1]
    assert shared.forward_flops() < 0.7 * separate.forward_flops()
    variables = drawn(shared, inputs)
    found: Any = [x.apply(variables, inputs) for x in (shared, separate)]
    jax.tree.map(np.testing.assert_array_equal, *(x.embeddings for x in found))
    words = {"text_words": inputs["text_words"]}  # as an evaluation encodes it
    only: Any = shared.apply(variables, words)
    np.testing.assert_array_equal(only.embeddings["text_words"], found[0].embeddings["text_words"])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"same_input_as": "txt"}, "same_input_as is 'txt'"),
        ({"same_input_as": "text", "length": 9}, "differ in length"),
    ],
)
def test_check_rejects_fields_that_cannot_share_an_input(keys: dict[str, Any], words: str) -> None:
    config = lexical_beside_dense()
    field = dataclasses.replace(config.fields["text_words"], **keys)  # type: ignore
    changed = dataclasses.replace(config, fields={**config.fields, "text_words": field})
    assert any(words in message for message in check_fields(changed)), list(check_fields(changed))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_eight_devices_equal_one(case: Callable[[], Config], tmp_path: Path) -> None:
    """A run with a decoder also resumes bit for bit, with its multiplier."""

    def values(run: str) -> list[list[float]]:
        ends = ("loss", "multiplier_raw")
        return [
            [value for key, value in sorted(row.items()) if key.split("/")[-1] in ends]
            for row in rows(tmp_path / run)
        ]

    train(case(), tmp_path / "one", ONE)
    train(case(), tmp_path / "eight")
    assert len(values("one")) == 3
    np.testing.assert_allclose(values("eight"), values("one"), rtol=1e-5)
    if case in DECODERS:
        make = functools.partial(dataclasses.replace, case())
        train_in_parts(make, tmp_path / "resumed", 2)  # type: ignore
        assert values("resumed") == values("one")
        assert_same_run(tmp_path / "resumed", tmp_path / "one")
