"""Grad-CAM of pairs of an image and a text, for the whole score and for each pair of class tokens.

"Design of the Topology for Contrastive Visual-Textual Alignment", section 4.5, whose authors
published no code for this; Selvaraju et al., "Grad-CAM" (2017). With the activations A [tokens, W]
of a layer and a score s, alpha = mean over the tokens of ds/dA, and the relevance of a token is
sum_k alpha_k A_k. The tokens are the patches of the image, and the words of the text.

A is the input of the attention in the last layer: after this layer, only class tokens affect the
score, so its output contains nothing about other tokens. If a tower averages all tokens, A is the
output of the last layer.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from big_retrieval import similarity
from big_retrieval.config import Bert, ViT
from big_retrieval.config.topologies import topology_part
from big_retrieval.models.class_tokens import tile_first, tile_last
from big_retrieval.models.towers import RetrievalModel

Arrays = Mapping[str, Mapping[str, Any]]
TOWERS: dict[str, Any] = {"image": ViT, "text": Bert}  # supported tower by modality


class Relevance(NamedTuple):
    """Values for the whole score and for each of its M pairs of class tokens (sub-spheres)."""

    whole: Any  # [n, ...]
    pairs: Any  # [n, M, ...]


class GradCam(NamedTuple):
    """Scores of n pairs of an image and a text, and the relevance of patches and words.

    Relevances are signed; a Grad-CAM map is their positive part (`positive`).
    """

    # Scores of the topology, without the logit scale, [n] and [n, M]. Inner products of pairs add
    # up to the whole score.
    scores: Relevance
    image: Relevance  # relevance of the patches, row by row, [n, R, R] and [n, M, R, R]
    # Relevance of the text's ids, [n, L] and [n, M, L]; 0 at class tokens and padding
    text: Relevance

    def positive(self) -> "GradCam":
        """Returns the Grad-CAM maps: negative relevances become 0, scores do not change."""
        image, text = (
            Relevance(*(np.maximum(x, 0) for x in part)) for part in (self.image, self.text)
        )
        return GradCam(self.scores, image, text)


class _Layer(NamedTuple):
    """Location of the activations of a field."""

    path: tuple[str, ...]  # path of a Linen module
    output: bool  # True for the module's result, False for its first argument
    shape: tuple[int, int]  # shape of one row, [L, W]


def obstacle(model: RetrievalModel, text: str, image: str) -> str:
    """Returns the reason why a model has no Grad-CAM for two fields; "" if it has."""
    if model.topology not in similarity.TOPOLOGIES:
        choices = ", ".join(similarity.TOPOLOGIES)
        return f"Grad-CAM needs one of the topologies {choices}; the model has {model.topology!r}."
    for name, modality in ((text, "text"), (image, "image")):
        if name not in model.fields or model.fields[name].modality != modality:
            names = [key for key, field in model.fields.items() if field.modality == modality]
            available = ", ".join(names) or "none"
            return f"Grad-CAM: the model has no {modality} field {name!r}. It has: {available}."
        tower = _tower(model, name)
        if model.fields[name].head.lexical:
            return (
                f"Grad-CAM needs dense embeddings, but field {name!r} has a lexical head. Use "
                "explain.shared or `big-retrieval explain --with`."
            )
        if not isinstance(tower, TOWERS[modality]) or tower.pool == "none":
            pool = ", pool 'none'" if isinstance(tower, TOWERS[modality]) else ""
            return (
                "Grad-CAM needs the class tokens, or the mean of all tokens, of a 'vit' and a "
                f"'bert' tower. Field {name!r} has a tower of the type {tower.type!r}{pool}."
            )
    return ""


@functools.lru_cache(maxsize=16)
def program(model: RetrievalModel, text: str, image: str) -> Callable[[Any, Arrays], GradCam]:
    """Compiles the function (variables, arrays of both fields) -> `GradCam` of a model.

    The function takes the variables of a model with any `scan`, `remat` and `attention`.
    """
    # Attention kernels would pad the activations.
    keys: Any = {"scan": False, "remat": "none", "attention": "plain"}
    towers = {
        name: dataclasses.replace(tower, **keys)  # type: ignore[type-var]
        if isinstance(tower, tuple(TOWERS.values()))
        else tower
        for name, tower in model.towers.items()
    }
    plain = model.clone(towers=towers, keep_raw=False, keep_vectors=())
    return jax.jit(functools.partial(_gradcam, plain, text, image))


def _gradcam(
    model: RetrievalModel, text: str, image: str, variables: Any, arrays: Arrays
) -> GradCam:
    """Computes the result of `program`; traced by jax."""
    rows, length = arrays[text]["ids"].shape
    text_tower, image_tower = _tower(model, text), _tower(model, image)
    count = (model.fields[image].size // image_tower.patch) ** 2  # type: ignore
    layers = {
        text: _layer(model, text, length + text_tower.class_tokens - 1),
        image: _layer(model, image, image_tower.class_tokens + count),
    }
    deltas = {name: jnp.zeros((rows, *layer.shape), model.dtype) for name, layer in layers.items()}
    compute = functools.partial(_scores, model, layers, variables, arrays)
    scores, pull, activations = jax.vjp(compute, deltas, has_aux=True)  # scores [n, 1 + M]
    words = _words(model, text, arrays)  # [n, L']
    tokens = {text: words, image: jnp.ones(deltas[image].shape[:2], bool)}
    tokens[image] = tokens[image].at[:, : image_tower.class_tokens].set(False)

    def relevance(one_hot: jax.Array) -> dict[str, jax.Array]:
        """Computes the relevances [n, L'] of each field for one of the 1 + M scores."""
        (slopes,) = pull(jnp.broadcast_to(one_hot, scores.shape))
        return {name: _weighted(slopes[name], activations[name], tokens[name]) for name in layers}

    # One score at a time: the slopes of all scores would be 1 + M arrays [n, L', W].
    relevances = jax.lax.map(relevance, jnp.eye(scores.shape[1], dtype=scores.dtype))
    patches = relevances[image][:, :, image_tower.class_tokens :]  # [1 + M, n, patches]
    side = round(patches.shape[-1] ** 0.5)
    start = 0 if text_tower.pool == "last" else text_tower.class_tokens - 1
    return GradCam(
        Relevance(scores[:, 0], scores[:, 1:]),
        _split(patches.reshape(*patches.shape[:2], side, side)),
        _split(relevances[text][:, :, start : start + length]),
    )


def _tower(model: RetrievalModel, field: str) -> Any:
    return model.towers[model.fields[field].tower]


def _layer(model: RetrievalModel, field: str, positions: int) -> _Layer:
    """Returns the location of a field's activations; see the docstring of this module."""
    tower = _tower(model, field)
    block = (model.fields[field].tower, f"layers_{tower.depth - 1}")
    shape = (positions, tower.width)
    if tower.pool == "mean":
        return _Layer(block, True, shape)
    return _Layer((*block, "attention"), False, shape)


def _scores(
    model: RetrievalModel,
    layers: Mapping[str, _Layer],
    variables: Any,
    arrays: Arrays,
    deltas: Mapping[str, jax.Array],
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Computes the scores of row i with row i, and the activations.

    Args:
      layers: locations of the activations of the text and the image field, in this order.
      deltas: zeros [n, L', W] to add to the activations. The gradients of both are equal.

    Returns:
      Whole score and scores of pairs of class tokens, [n, 1 + M]; activations [n, L', W] by field.
    """
    at = {layer.path: (name, layer.output) for name, layer in layers.items()}
    activations: dict[str, jax.Array] = {}

    def add(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        name, output = at.get(context.module.path, ("", False))
        if not name or context.method_name != "__call__":
            return call(*args, **kwargs)
        if output:
            activations[name] = call(*args, **kwargs)
            return activations[name] + deltas[name]
        activations[name], *rest = args
        return call(activations[name] + deltas[name], *rest, **kwargs)

    with nn.intercept_methods(add):
        reps: Any = model.apply(variables, {name: arrays[name] for name in layers})
    topology = topology_part(model.topology)
    a, b = (reps.embeddings[name] for name in layers)  # [n, M, N] each
    whole = topology.paired(a, b)  # [n]
    pairs = jax.vmap(lambda u, v: topology.paired(u[:, None], v[:, None]), 1, 1)(a, b)  # [n, M]
    return jnp.concatenate([whole[:, None], pairs], axis=1), activations


def _words(model: RetrievalModel, text: str, arrays: Arrays) -> jax.Array:
    """Returns True for positions of the text tower with words, bool [n, L']."""
    tower = _tower(model, text)
    tile = tile_last if tower.pool == "last" else tile_first
    tiled = tile(arrays[text]["ids"], arrays[text]["mask"], tower.class_tokens)
    return tiled.mask.astype(bool) & (tiled.copy < 0)


def _weighted(slopes: jax.Array, activations: jax.Array, tokens: jax.Array) -> jax.Array:
    """Computes sum_k alpha_k A_k [n, L'] from ds/dA, A [n, L', W] and included tokens [n, L']."""
    dtype = jnp.promote_types(slopes.dtype, jnp.float32)
    share = tokens / jnp.maximum(jnp.sum(tokens, axis=1, keepdims=True), 1).astype(dtype)
    alpha = jnp.einsum("nl,nlw->nw", share, slopes.astype(dtype), precision="highest")
    values = jnp.einsum("nw,nlw->nl", alpha, activations.astype(dtype), precision="highest")
    return jnp.where(tokens, values, 0)


def _split(values: jax.Array) -> Relevance:
    """Splits [1 + M, n, ...] into the whole score [n, ...] and pairs [n, M, ...]."""
    return Relevance(values[0], jnp.moveaxis(values[1:], 0, 1))
