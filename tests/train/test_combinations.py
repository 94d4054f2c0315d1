"""Methods combined in one config: three steps on 1 and on 8 devices agree to 1e-5 (float32)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import Config, recipe
from big_retrieval.train.loop import train
from tests.examples.helpers import example
from tests.helpers import rows, tiny
from tests.train.test_graded_training import graded
from tests.train.test_vdr_training import pictures, texts

pytestmark = pytest.mark.usefixtures("one_model")


def decoder(target: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """A target field and the loss that decodes it, as changes of a config."""
    field = recipe.entry(configs.ArrayField(), shape=(6,), generated=True, **target)
    latent = recipe.entry(example("latent_target").LatentTarget(), width=8, **keys)
    return {"fields__target": field, "losses__target": latent}


BOUND = {"constraint": configs.Constraint(bound=0.5)}


def oblique_graded() -> Config:
    """Class tokens, pairs with weights, an average of fields on their spheres."""
    return graded(tokens=4, topology="oblique", total_steps=3)


def fields_constrained() -> Config:
    """Two document fields whose decoder is held to a bound."""
    return graded(total_steps=3, **decoder({}, field="query", **BOUND))


def oblique_decoder() -> Config:
    """All class tokens are decoded, by weight; the batch in slices."""
    changes = decoder({"aligned_with": "text"}, weight=0.5)
    return tiny(total_steps=3, topology="oblique", microbatch=8, **changes)


def geodesic_triplet() -> Config:
    """Hardest negatives of one topology beside a contrastive loss of another."""
    triplet = recipe.entry(example("triplet").Triplet(), topology="oblique", weight=0.3)
    return tiny(total_steps=3, topology="geodesic", losses__hardest=triplet)


def lexical_decoder() -> Config:
    """VDR's loss over images and texts; the text's dense vocabulary vector is decoded."""
    return pictures(total_steps=3, **decoder({"aligned_with": "text"}, **BOUND))


def negatives_matryoshka() -> Config:
    """Hard negatives of lexical texts in the main loss, a sigmoid loss beside it."""
    return texts(total_steps=3, losses__second=recipe.entry(configs.Sigmoid(), weight=0.1))


def lexical_beside_dense() -> Config:
    """Two heads on each tower: words for VDR's loss, one vector for a contrastive one."""
    lexical = pictures(total_steps=3).fields
    dense = recipe.entry(configs.Projection(), dim=8, pool="mean")
    fields: dict[str, Any] = {}
    for name, field in lexical.items():
        fields[f"fields__{name}_words"] = recipe.entry(field)
        fields[f"fields__{name}__head"] = dense
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
    given = {**fields, **changes, "losses__words": recipe.entry(vdr, weight=0.2), "evals": evals}
    return pictures(total_steps=3, **given)


CASES: list[Callable[[], Config]] = [
    oblique_decoder, lexical_beside_dense, fields_constrained, oblique_graded, geodesic_triplet,
    lexical_decoder, negatives_matryoshka,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_one_device_is_eight(case: Callable[[], Config], tmp_path: Path) -> None:
    train(case(), tmp_path / "one", jax.devices()[:1])
    train(case(), tmp_path / "eight", jax.devices())
    found = [
        [[value for key, value in sorted(row.items()) if key.split("/")[-1] == "loss"]
         for row in rows(tmp_path / name) if "loss" in row]
        for name in ("one", "eight")
    ]  # fmt: skip
    assert len(found[0]) == 3
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
