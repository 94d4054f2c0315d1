"""Small models of the reference values of VDR, with the files' weights."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from big_retrieval.config import Bert, ViT
from big_retrieval.interop.image_names import OPEN_CLIP_IMAGE
from big_retrieval.interop.names import NameEntry, NameTable
from big_retrieval.interop.text_names import BERT
from big_retrieval.sparse import gate
from tests.helpers import built, lexical_head

Case = Mapping[str, np.ndarray]


def close(
    ours: Any, theirs: Any, *, rtol: float = 1e-5, share: float = 3e-6, name: str = ""
) -> None:
    """The README's tolerances: relative, and a share of the largest absolute value."""
    theirs = np.asarray(theirs)
    atol = share * float(np.abs(theirs).max(initial=0))
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=rtol, atol=atol, err_msg=name)


@functools.partial(jax.jit, static_argnames=("k", "width"))
def gated(embeddings: jax.Array, k: int, width: int, words: jax.Array | None = None) -> jax.Array:
    """The k largest columns of each row, and those of its words, [n, width]."""
    return gate.to_dense(gate.sparsify(embeddings, k, words), width)


@functools.partial(jax.jit, static_argnames=("width", "normalise"))
def bag(words: jax.Array, width: int, normalise: bool = False) -> jax.Array:
    """Bags of words, [n, width]."""
    return gate.to_dense(gate.bag_of_words(words, normalise), width)


def words_of(bow: np.ndarray) -> jax.Array:
    """The columns of bags of words [n, V] as int32 [n, L], -1 behind the last."""
    rows = [np.flatnonzero(row) for row in bow]
    out = np.full((len(rows), max(map(len, rows))), -1, np.int32)
    for row, columns in zip(out, rows, strict=True):
        row[: len(columns)] = columns
    return jnp.asarray(out)


def converted(case: Case, prefix: str, table: NameTable) -> dict[str, Any]:
    """Parameters of a prefix in our layout, nested."""
    arrays = {k.removeprefix(prefix): x for k, x in case.items() if k.startswith(prefix)}
    flat = {}
    known = set()
    for name, path, array in table.to_jax(arrays):
        flat[path] = jnp.asarray(array)
        known.add(name)
    assert known == set(arrays)
    return traverse_util.unflatten_dict(flat, sep="/")


_MODEL = "bert_model."
TEXT = NameTable(
    (
        *(
            NameEntry(f"{_MODEL}{e.source_name}", f"text/{e.jax_path}", e.layout)
            for e in BERT.entries
        ),
        NameEntry("ln.weight", "head/ln/scale"),
        NameEntry("ln.bias", "head/ln/bias"),
    )
)


class TextEncoder:
    """A small BERT with the head, as a function of its parameters."""

    def __init__(self, case: Case, prefix: str, columns: Any, normalise: bool = False) -> None:
        self.params = converted(case, prefix, TEXT)
        words = self.params["text"]["token_embedding"]
        self.tower = built(
            Bert,
            vocab_size=len(words),
            width=words.shape[1],
            depth=int(case["num_layers"]),
            heads=int(case["num_heads"]),
            mlp=self.params["text"]["layers_0"]["mlp"]["fc1"]["bias"].size,
            pool="none",
            final_norm=False,
            token_types=2,
            epsilon=1e-12,
        )
        # The reference lets padding compete in the pooling.
        self.head = lexical_head(columns, tied=True, pool_padding=True, normalise=normalise)

    def hidden(self, params: Any, ids: Any, mask: Any) -> Any:
        """Positions [n, L, D]."""
        apply = jax.jit(self.tower.apply)
        return apply({"params": params["text"]}, jnp.asarray(ids), jnp.asarray(mask))

    def __call__(self, params: Any, ids: Any, mask: Any) -> jax.Array:
        """V(x), [n, V]."""
        table = params["text"]["token_embedding"]
        hidden = self.hidden(params, ids, mask)
        return jax.jit(self.head.apply)({"params": params["head"]}, hidden, None, table)  # type: ignore


def columns_in(case: Case, ids: np.ndarray, chosen: Any) -> jax.Array:
    """The columns of token ids, -1 where they have none."""
    table = np.full(len(case["vocab"]), -1, np.int32)
    table[np.asarray(chosen)] = np.arange(len(chosen))
    return jnp.asarray(table[ids])


PATCHES = NameTable(
    (
        *(
            NameEntry(e.source_name.removeprefix("visual."), f"image/{e.jax_path}", e.layout)
            for e in OPEN_CLIP_IMAGE.entries
            if e.jax_path != "class_embedding"
        ),
        NameEntry("proj", "head/kernel"),
    )
)


class ImageEncoder:
    """A small vision transformer with the head over its patches."""

    def __init__(self, case: Case) -> None:
        self.params = converted(case, "w/", PATCHES)
        kernel = self.params["head"]["kernel"]
        self.width = len(kernel)
        self.tower = built(
            ViT,
            patch=int(case["patch_size"]),
            width=kernel.shape[1],
            depth=int(case["num_layers"]),
            heads=int(case["num_heads"]),
            mlp=self.params["image"]["layers_0"]["mlp"]["fc1"]["bias"].size,
            class_tokens=0,
            pool="none",
            activation="quick_gelu",
        )
        self.head = lexical_head(range(self.width), layer_norm=False, normalise=True)

    def patches(self, params: Any, pixels: Any) -> Any:
        """Patches [n, P, D] behind ln_post, of pixels [n, 3, S, S]."""
        return self.tower.apply({"params": params["image"]}, pixels.transpose(0, 2, 3, 1))

    def __call__(self, params: Any, pixels: Any) -> Any:
        """V(x), [n, V]."""
        return self.head.apply({"params": params["head"]}, self.patches(params, pixels))
