"""Towers of other libraries, read by us: the same representations and gradients as theirs.

What they computed is in data/, made by `python -m tests.interop.generate`.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.config import Bert, ViT
from big_retrieval.interop.layouts import LAYOUTS
from big_retrieval.interop.read import read
from big_retrieval.interop.source import Part, Source
from big_retrieval.models.towers import make_tower

DATA = Path(__file__).parent / "data"
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
TEXT = ("bert", "bert_tanh_8_heads", "roberta", "xlm_roberta", "distilbert", "mpnet")
IMAGE = ("hf_vit", "timm_vit")
PAIRS = ("hf_clip", "hf_clip_quick", "open_clip", "open_clip_quick", "open_clip_custom")


def case(name: str) -> tuple[Source, dict[str, np.ndarray]]:
    """What we read from a folder, and what its library computed."""
    source = read(str(DATA / name))
    assert source.unknown == []
    with np.load(DATA / name / "expected.npz") as file:
        return source, {key: file[key] for key in file.files}


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """path -> array as nested dictionaries."""
    tree: dict[str, Any] = {}
    for path, array in flat.items():
        *groups, last = path.split("/")
        node = tree
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = jnp.asarray(array)
    return tree


def text_inputs(expected: dict[str, np.ndarray]) -> tuple[jax.Array, jax.Array]:
    return jnp.asarray(expected["ids"]), jnp.asarray(expected["mask"], bool)


def run(part: Part, inputs: tuple[Any, ...], params: Any = None, **changes: Any) -> jax.Array:
    """Tokens [B, M, W] of a tower."""
    tower: Any = make_tower(part.tower, 0).clone(**changes)
    return tower.apply({"params": nested(part.params) if params is None else params}, *inputs)


def points(part: Part, inputs: tuple[Any, ...], params: Any = None, head: Any = None) -> jax.Array:
    """The projected token of a two-tower model, [B, N]."""
    kernel = part.head["kernel"] if head is None else head
    return jnp.matmul(run(part, inputs, params)[:, 0], kernel, precision="highest")


@pytest.mark.parametrize("name", TEXT)
def test_text(name: str) -> None:
    source, expected = case(name)
    ids, mask = text_inputs(expected)
    found = run(source.parts["text"], (ids, mask), pool="none") * mask[:, :, None]
    np.testing.assert_allclose(found, expected["out"], **TOLERANCE)


@pytest.mark.parametrize("name", IMAGE)
def test_image(name: str) -> None:
    source, expected = case(name)
    found = run(source.parts["image"], (jnp.asarray(expected["pixels"]),))
    np.testing.assert_allclose(found, expected["out"], **TOLERANCE)
    assert source.parts["image"].image_size == 24


@pytest.mark.parametrize("name", PAIRS)
def test_pair(name: str) -> None:
    source, expected = case(name)
    inputs = {"image": (jnp.asarray(expected["pixels"]),), "text": text_inputs(expected)}
    for side, part in source.parts.items():
        found = points(part, inputs[side])
        np.testing.assert_allclose(found, expected[side], **TOLERANCE, err_msg=side)
        assert part.tower.activation == ("quick_gelu" if "quick" in name else "gelu")
    assert source.temperature is not None
    np.testing.assert_allclose(source.temperature, expected["temperature"])


def compare_gradients(part: Part, found: Any, expected: dict[str, np.ndarray]) -> int:
    """Every gradient of theirs against ours, relative to its largest; returns how many."""
    prefix = "text." if any(name.startswith("grad.text.") for name in expected) else ""
    theirs = {
        name.removeprefix(f"grad.{prefix}"): x
        for name, x in expected.items()
        if name.startswith("grad.")
    }
    compared = 0
    for _, path, value in part.kind.table.to_ours(theirs):
        node = found
        for key in path.split("/"):
            node = node[key]
        scale = max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(node / scale, value / scale, atol=1e-5, err_msg=path)
        compared += 1
    return compared


@pytest.mark.parametrize("name", ["bert", "mpnet", "timm_vit"])
def test_gradients(name: str) -> None:
    source, expected = case(name)
    ((side, part),) = source.parts.items()
    weights = expected["weights"]
    if side == "text":
        inputs, changes = text_inputs(expected), {"pool": "none"}
        weights = weights * expected["mask"][:, :, None]
    else:
        inputs, changes = (jnp.asarray(expected["pixels"]),), {}

    def loss(params: Any) -> jax.Array:
        return jnp.sum(run(part, inputs, params, **changes) * weights)

    found = jax.grad(loss)(nested(part.params))
    assert compare_gradients(part, found, expected) == len(part.params)


def test_gradients_of_both_towers() -> None:
    source, expected = case("open_clip")
    inputs = {"image": (jnp.asarray(expected["pixels"]),), "text": text_inputs(expected)}
    for side, part in source.parts.items():

        def loss(params: Any, kernel: jax.Array, side: str = side, part: Part = part) -> jax.Array:
            found = points(part, inputs[side], params, kernel)
            return jnp.sum(found * expected[f"{side}_weights"])

        kernel = jnp.asarray(part.head["kernel"])
        found, head = jax.grad(loss, (0, 1))(nested(part.params), kernel)
        assert compare_gradients(part, found, expected) == len(part.params)
        assert part.kind.head is not None
        (want,) = LAYOUTS[part.kind.head.layout].ours(expected[f"grad.{part.kind.head.theirs}"])
        np.testing.assert_allclose(head, want, rtol=1e-4, atol=1e-4)


def test_what_the_arrays_tell() -> None:
    bert = case("bert_tanh_8_heads")[0].parts["text"].tower
    assert bert == Bert(
        width=32, depth=2, heads=8, mlp=48, final_norm=False, token_types=2, epsilon=1e-12,
        activation="gelu_tanh", vocab_size=40,
    )  # fmt: skip
    vit = case("open_clip")[0].parts["image"].tower
    assert vit == ViT(patch=8, width=32, depth=2, heads=4, mlp=48)
    source = case("open_clip")[0]
    assert source.settings.pixels is not None
    assert source.settings.pixels.mean == (0.5, 0.4, 0.3)
    assert source.parts["text"].tower.causal  # type: ignore[union-attr]


@pytest.mark.parametrize("name", [*TEXT, *IMAGE, *PAIRS])
def test_tables_read_in_both_directions(name: str) -> None:
    for part in case(name)[0].parts.values():
        table = part.kind.table
        theirs = table.to_theirs(part.params)
        again = {path: x for _, path, x in table.to_ours(theirs)}
        assert set(again) == set(part.params)
        for path, array in again.items():
            np.testing.assert_array_equal(array, part.params[path])
