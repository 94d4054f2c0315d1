"""Towers of other libraries: saved by them, read by us, the same representations and gradients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.config import Bert
from big_retrieval.interop.read import read
from big_retrieval.interop.source import Part
from big_retrieval.models.towers import make_tower

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
IDS = np.array([[3, 7, 9, 4, 8, 2], [3, 5, 2, 1, 1, 1], [3, 6, 11, 12, 2, 1]])
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]])
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT = {**SIZES, "intermediate_size": 48, "vocab_size": 40, "max_position_embeddings": 16}


def perturbed(model: Any, seed: int = 0) -> Any:
    """A model in evaluation mode whose norms and biases are not 1 and 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def saved(model: Any, folder: Path) -> Part:
    """Saves a text or vision model by its own library and reads its only tower."""
    model.save_pretrained(folder)
    source = read(str(folder))
    assert source.unknown == []
    (part,) = source.parts.values()
    return part


def nested(flat: dict[str, np.ndarray]) -> dict[str, Any]:
    """path -> array as nested dictionaries."""
    tree: dict[str, Any] = {}
    for path, array in flat.items():
        *groups, last = path.split("/")
        node = tree
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = jnp.asarray(array)
    return tree


def positions(part: Part, ids: np.ndarray = IDS, mask: np.ndarray = MASK) -> np.ndarray:
    """The last layer's output at all positions [B, L, W], by our tower."""
    tower: Any = make_tower(part.tower, 0)
    tower = tower.clone(pool="none", class_tokens=1)
    out = tower.apply({"params": nested(part.params)}, jnp.asarray(ids), jnp.asarray(mask, bool))
    return np.asarray(out)


def hidden(model: Any, ids: np.ndarray = IDS, mask: np.ndarray = MASK) -> np.ndarray:
    """The same by the model itself."""
    with torch.no_grad():
        out = model(torch.tensor(ids), attention_mask=torch.tensor(mask))
    return out.last_hidden_state.numpy()


def config(name: str, **changes: Any) -> Any:
    return getattr(transformers, f"{name}Config")(**{**BERT, **changes})


def model(name: str, **changes: Any) -> Any:
    return perturbed(getattr(transformers, f"{name}Model")(config(name, **changes)))


ROBERTA = {"max_position_embeddings": 18, "type_vocab_size": 1, "pad_token_id": 1}
TEXT: dict[str, Callable[[], Any]] = {
    "BERT": lambda: model("Bert"),
    "BERT without pooler": lambda: perturbed(
        transformers.BertModel(config("Bert"), add_pooling_layer=False)
    ),
    "BERT, tanh": lambda: model("Bert", hidden_act="gelu_new"),
    "RoBERTa": lambda: model("Roberta", **ROBERTA),
    "XLM-RoBERTa": lambda: model("XLMRoberta", **ROBERTA),
    "DistilBERT": lambda: perturbed(
        transformers.DistilBertModel(
            transformers.DistilBertConfig(
                dim=32, n_layers=2, n_heads=4, hidden_dim=48, vocab_size=40,
                max_position_embeddings=16,
            )
        )
    ),
    "MPNet": lambda: model("MPNet", max_position_embeddings=18, pad_token_id=1),
    "MiniLM's shape": lambda: model("Bert", num_attention_heads=8),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXT)
def test_text(name: str, tmp_path: Path) -> None:
    theirs = TEXT[name]()
    part = saved(theirs, tmp_path)
    kept = MASK.astype(bool)
    np.testing.assert_allclose(positions(part)[kept], hidden(theirs)[kept], **TOLERANCE)
    assert isinstance(part.tower, Bert)
    assert part.positions == 16


def test_mpnet_far_apart(tmp_path: Path) -> None:
    theirs = model("MPNet", max_position_embeddings=302, pad_token_id=1)
    part = saved(theirs, tmp_path)
    ids = np.random.default_rng(0).integers(2, 40, (1, 300))
    mask = np.ones_like(ids)
    np.testing.assert_allclose(positions(part, ids, mask), hidden(theirs, ids, mask), **TOLERANCE)


def vit() -> Any:
    return transformers.ViTModel(
        transformers.ViTConfig(**SIZES, intermediate_size=48, image_size=24, patch_size=8)
    )


def test_hugging_face_vit(tmp_path: Path) -> None:
    theirs = perturbed(vit())
    part = saved(theirs, tmp_path)
    pixels = np.random.default_rng(0).normal(size=(2, 24, 24, 3)).astype(np.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor(pixels.transpose(0, 3, 1, 2))).last_hidden_state[:, :1]
    tower: Any = make_tower(part.tower, 0)
    found = tower.apply({"params": nested(part.params)}, jnp.asarray(pixels))
    np.testing.assert_allclose(found, expected.numpy(), **TOLERANCE)
    assert part.image_size == 24


def clip(act: str) -> Any:
    sizes = {**SIZES, "intermediate_size": 48, "hidden_act": act}
    text = {**sizes, "vocab_size": 40, "max_position_embeddings": 6, "eos_token_id": 39}
    vision = {**sizes, "image_size": 24, "patch_size": 8}
    settings = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=20)
    return perturbed(transformers.CLIPModel(settings))


@pytest.mark.parametrize("act", ["gelu", "quick_gelu"])
def test_hugging_face_clip(act: str, tmp_path: Path) -> None:
    theirs = clip(act)
    theirs.save_pretrained(tmp_path)
    source = read(str(tmp_path))
    assert source.unknown == []
    assert set(source.parts) == {"image", "text"}
    pixels = np.random.default_rng(0).normal(size=(2, 24, 24, 3)).astype(np.float32)
    ids = np.where(IDS == 2, 39, IDS)  # the end of the text has the largest id
    with torch.no_grad():
        images = theirs.get_image_features(torch.tensor(pixels.transpose(0, 3, 1, 2)))
        texts = theirs.get_text_features(torch.tensor(ids), attention_mask=torch.tensor(MASK))
    expected = {"image": features(images), "text": features(texts)}
    inputs = {"image": (pixels,), "text": (ids, MASK.astype(bool))}
    for name, part in source.parts.items():
        assert part.tower.activation == act
        tower: Any = make_tower(part.tower, 0)
        tokens = tower.apply({"params": nested(part.params)}, *map(jnp.asarray, inputs[name]))
        found = tokens[:, 0] @ part.head["kernel"]
        np.testing.assert_allclose(found, expected[name], **TOLERANCE, err_msg=name)
    assert source.temperature is not None
    np.testing.assert_allclose(source.temperature, theirs.logit_scale.item())


def features(out: Any) -> np.ndarray:
    """Pooled and projected features, which newer versions wrap in an object."""
    return (out if isinstance(out, torch.Tensor) else out.pooler_output).numpy()


def test_gradients_of_bert(tmp_path: Path) -> None:
    theirs = TEXT["BERT without pooler"]()
    part = saved(theirs, tmp_path)
    weights = np.random.default_rng(0).normal(size=(3, 6, 32)).astype(np.float32) * MASK[..., None]
    out = theirs(torch.tensor(IDS), attention_mask=torch.tensor(MASK)).last_hidden_state
    (out * torch.tensor(weights, dtype=torch.float32)).sum().backward()
    gradients = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    expected = {path: array for _, path, array in part.kind.table.to_ours(gradients)}
    tower: Any = make_tower(part.tower, 0).clone(pool="none")

    def loss(params: Any) -> jax.Array:
        points = tower.apply({"params": params}, jnp.asarray(IDS), jnp.asarray(MASK, bool))
        return jnp.sum(points * weights)

    found = jax.grad(loss)(nested(part.params))
    for path, value in expected.items():
        node = found
        for key in path.split("/"):
            node = node[key]
        scale = max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(node / scale, value / scale, atol=1e-5, err_msg=path)
    assert set(expected) == set(part.params)
