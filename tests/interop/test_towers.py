"""Imported towers have the representations and gradients of their libraries.

The values are in data/, written by `python -m tests.interop.generate`.
"""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import save_file

from big_retrieval.config import Bert, ViT
from big_retrieval.errors import UserError
from big_retrieval.interop.names import LAYOUTS
from big_retrieval.interop.read import read
from big_retrieval.interop.source import CheckpointContents, CheckpointTower
from tests.interop.folders import DATA

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
TEXT = ("bert", "bert_tanh_8_heads", "roberta", "xlm_roberta", "distilbert", "mpnet")
IMAGE = ("hf_vit", "timm_vit")
PAIRS = ("hf_clip", "hf_clip_quick", "open_clip", "open_clip_quick", "open_clip_custom")


@functools.cache
def case(name: str) -> tuple[CheckpointContents, dict[str, np.ndarray]]:
    """The contents of a folder, and the values that its library computed."""
    source = read(str(DATA / name))
    assert source.unknown == []
    with np.load(DATA / name / "expected.npz") as file:
        return source, dict(file)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """path -> array as nested dictionaries."""
    return traverse_util.unflatten_dict({k: jnp.asarray(x) for k, x in flat.items()}, sep="/")


def text_inputs(expected: dict[str, np.ndarray]) -> tuple[jax.Array, jax.Array]:
    return jnp.asarray(expected["ids"]), jnp.asarray(expected["mask"], bool)


def run(
    part: CheckpointTower, inputs: tuple[Any, ...], params: Any = None, **changes: Any
) -> jax.Array:
    """Tokens [B, M, W] of a tower."""
    tower: Any = dataclasses.replace(part.tower, **changes).build(0, ())
    return tower.apply({"params": nested(part.params) if params is None else params}, *inputs)


def embeddings(
    part: CheckpointTower, inputs: tuple[Any, ...], params: Any = None, head: Any = None
) -> jax.Array:
    """The projected token of a two-tower model, [B, N]."""
    kernel = part.head["kernel"] if head is None else head
    return jnp.matmul(run(part, inputs, params)[:, 0], kernel, precision="highest")


@pytest.mark.parametrize("name", TEXT)
def test_texts_are_encoded_as_by_their_library(name: str) -> None:
    source, expected = case(name)
    ids, mask = text_inputs(expected)
    found = run(source.parts["text"], (ids, mask), pool="none") * mask[:, :, None]
    np.testing.assert_allclose(found, expected["out"], **TOLERANCE)


@pytest.mark.parametrize("name", IMAGE)
def test_images_are_encoded_as_by_their_library(name: str) -> None:
    source, expected = case(name)
    found = run(source.parts["image"], (jnp.asarray(expected["pixels"]),))
    np.testing.assert_allclose(found, expected["out"], **TOLERANCE)
    assert source.parts["image"].image_size == 24


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_encoded_as_by_their_library(name: str) -> None:
    source, expected = case(name)
    inputs = {"image": (jnp.asarray(expected["pixels"]),), "text": text_inputs(expected)}
    for side, part in source.parts.items():
        found = embeddings(part, inputs[side])
        np.testing.assert_allclose(found, expected[side], **TOLERANCE, err_msg=side)
        assert part.tower.activation == ("quick_gelu" if "quick" in name else "gelu")
    assert source.logit_scale is not None
    np.testing.assert_allclose(source.logit_scale, expected["temperature"])


def compare_gradients(part: CheckpointTower, found: Any, expected: dict[str, np.ndarray]) -> int:
    """Compares gradients, relative to the largest value of each; returns their number."""
    prefix = "text." if any(name.startswith("grad.text.") for name in expected) else ""
    theirs = {
        name.removeprefix(f"grad.{prefix}"): x
        for name, x in expected.items()
        if name.startswith("grad.")
    }
    compared = 0
    for _, path, value in part.kind.table.to_jax(theirs):
        node = found
        for key in path.split("/"):
            node = node[key]
        scale = max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(node / scale, value / scale, atol=1e-5, err_msg=path)
        compared += 1
    return compared


@pytest.mark.parametrize(
    "name", ["bert", *(pytest.param(n, marks=pytest.mark.slow) for n in ("mpnet", "timm_vit"))]
)
def test_gradients_are_those_of_the_library(name: str) -> None:
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


@pytest.mark.slow
def test_gradients_of_both_towers() -> None:
    source, expected = case("open_clip")
    inputs = {"image": (jnp.asarray(expected["pixels"]),), "text": text_inputs(expected)}
    for side, part in source.parts.items():

        def loss(
            params: Any, kernel: jax.Array, side: str = side, part: CheckpointTower = part
        ) -> jax.Array:
            found = embeddings(part, inputs[side], params, kernel)
            return jnp.sum(found * expected[f"{side}_weights"])

        kernel = jnp.asarray(part.head["kernel"])
        found, head = jax.grad(loss, (0, 1))(nested(part.params), kernel)
        assert compare_gradients(part, found, expected) == len(part.params)
        entry = part.kind.head
        assert entry is not None
        (want,) = LAYOUTS[entry.layout].to_jax(expected[f"grad.{entry.source_name}"])
        np.testing.assert_allclose(head, want, rtol=1e-4, atol=1e-4)


def test_read_takes_the_config_from_the_arrays() -> None:
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
def test_tables_convert_in_both_directions(name: str) -> None:
    for part in case(name)[0].parts.values():
        table = part.kind.table
        again = {path: x for _, path, x in table.to_jax(table.to_source(part.params))}
        assert set(again) == set(part.params)
        for path, array in again.items():
            np.testing.assert_array_equal(array, part.params[path])


GOLDEN = DATA.parent.parent / "golden" / "data" / "oblique"


@pytest.mark.parametrize("name", ["model_m1", pytest.param("model_m16", marks=pytest.mark.slow)])
def test_clip_mtob_computes_its_published_values(name: str, tmp_path: Path) -> None:
    with np.load(GOLDEN / f"{name}.npz") as file:
        golden = {key: file[key] for key in file.files}
    theirs = {k[len("param.") :]: x for k, x in golden.items() if k.startswith("param.")}
    save_file({k: np.ascontiguousarray(x) for k, x in theirs.items()}, tmp_path / "m.safetensors")
    sizes = json.loads(str(golden["config_json"]))
    source = read(str(tmp_path / "m.safetensors"))
    parts = source.parts
    assert source.unknown == []
    assert {part.tower.class_tokens for part in parts.values()} == {sizes["n_class_tokens"]}
    heads = {"image": sizes["vision_heads"], "text": sizes["transformer_heads"]}
    inputs: dict[str, Any] = {
        "image": (jnp.asarray(golden["image"].transpose(0, 2, 3, 1)),),
        "text": (jnp.asarray(golden["input_ids"]), jnp.asarray(golden["attention_mask"], bool)),
    }
    for side, part in parts.items():
        tokens = run(part, inputs[side], heads=heads[side])  # published ones have 64 a head
        found = jnp.matmul(tokens, part.head["kernel"], precision="highest")
        expected = golden[f"out32.{side}_features"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)
    for side, part in parts.items():
        again = part.kind.table.to_source(part.params)
        assert set(again) <= set(theirs), side
        for key, array in again.items():
            np.testing.assert_array_equal(array, theirs[key].reshape(array.shape))


def as_big_vision(params: dict[str, np.ndarray], heads: int, old: bool, scanned: bool) -> Any:
    """Parameters as big_vision, or the older vision_transformer code, saves them."""
    width = params["class_embedding"].shape[1]
    arrays: dict[str, np.ndarray] = {}
    block, attention = "Transformer/encoderblock_{i}/", "MultiHeadDotProductAttention_0/"
    for path, array in params.items():
        layer = path.split("/")[0].removeprefix("layers_")
        name = path.split("/", 1)[-1]
        if path.startswith("layers_"):
            name = name.replace("attention/", attention).replace("ln_1", "LayerNorm_0")
            name = name.replace("ln_2", "LayerNorm_1").replace("mlp/fc", "MlpBlock_0/Dense_")
            name = name.replace("Dense_1", "Dense_0").replace("Dense_2", "Dense_1")
            if "out/kernel" in name:
                array = array.reshape(heads, width // heads, width)
            elif attention in name and "out" not in name:
                array = array.reshape(*array.shape[:-1], heads, width // heads)
            name = block.format(i=layer) + name
        arrays[name if path.startswith("layers_") else path] = array
    arrays["cls"] = arrays.pop("class_embedding")[None]
    arrays["pos_embedding"] = arrays.pop("position_embedding")[None]
    kernel = arrays.pop("patch_embedding/kernel")
    arrays["embedding/kernel"] = kernel.reshape(8, 8, 3, width)
    arrays["embedding/bias"] = arrays.pop("patch_embedding/bias")
    for end in ("scale", "bias"):
        arrays[f"Transformer/encoder_norm/{end}"] = arrays.pop(f"ln_post/{end}")
    if old:
        arrays = {
            k.replace("MultiHeadDotProductAttention_0", "MultiHeadDotProductAttention_1")
            .replace("LayerNorm_1", "LayerNorm_2").replace("MlpBlock_0", "MlpBlock_3")
            .replace("pos_embedding", "Transformer/posembed_input/pos_embedding"): x
            for k, x in arrays.items()
        }  # fmt: skip
    if scanned:
        first = [k for k in arrays if "encoderblock_0/" in k]
        for key in first:
            both = [arrays.pop(key), arrays.pop(key.replace("encoderblock_0", "encoderblock_1"))]
            arrays[key.replace("encoderblock_0", "encoderblock")] = np.stack(both)
    return {f"params/{k}": x for k, x in arrays.items()} if not old else arrays


@pytest.mark.parametrize(("old", "scanned"), [(False, False), (False, True), (True, False)])
def test_big_vision_vit_is_read(old: bool, scanned: bool, tmp_path: Path) -> None:
    params = case("hf_vit")[0].parts["image"].params
    saved = as_big_vision(dict(params), 4, old, scanned)
    np.savez(
        tmp_path / "vit.npz",
        **saved,
        **{"params/head/kernel" if not old else "head/kernel": np.zeros((32, 5))},
    )
    source = read(str(tmp_path / "vit.npz"))
    assert source.unknown == []
    part = source.parts["image"]
    assert set(part.params) == set(params)
    for path, array in params.items():
        np.testing.assert_array_equal(part.params[path], array, err_msg=path)
    assert part.tower.activation == "gelu_tanh"


def test_big_vision_class_token_without_a_position_gets_zeros(tmp_path: Path) -> None:
    params = dict(case("hf_vit")[0].parts["image"].params)
    saved = as_big_vision(dict(params), 4, False, False)
    saved["params/pos_embedding"] = saved["params/pos_embedding"][:, 1:]
    np.savez(tmp_path / "vit.npz", **saved)
    arrays = read(str(tmp_path / "vit.npz")).parts["image"].params["position_embedding"]
    np.testing.assert_array_equal(arrays[1:], params["position_embedding"][1:])
    assert not arrays[0].any()


def test_big_vision_vit_without_positions_is_rejected(tmp_path: Path) -> None:
    saved = as_big_vision(dict(case("hf_vit")[0].parts["image"].params), 4, False, False)
    del saved["params/pos_embedding"]
    np.savez(tmp_path / "vit.npz", **saved)
    with pytest.raises(UserError, match="lacks its position_embedding"):
        read(str(tmp_path / "vit.npz"))
