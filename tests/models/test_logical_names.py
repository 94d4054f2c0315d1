"""Logical axis names of parameters, which the rules of `parallel` map to mesh axes."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import traverse_util
from jax.sharding import PartitionSpec as P

from big_retrieval.config import Bert, Gru, Projection, ResNet, ViT
from big_retrieval.models.attention import Attention
from big_retrieval.models.layers import BlockInit, FeedForward, LayerNorm
from big_retrieval.models.recurrent import RecurrentText
from tests.helpers import built, lexical_head

SIZE: dict[str, Any] = {"width": 8, "depth": 1, "heads": 2, "mlp": 16}
IMAGES, TOKENS = (jnp.zeros((1, 32, 32, 3)),), (jnp.zeros((1, 2, 8)),)
TEXTS = (jnp.ones((1, 4), jnp.int32), jnp.ones((1, 4), bool))
INITS = BlockInit.vision(8, 16)
VIT, BERT = built(ViT, patch=8, **SIZE), built(Bert, vocab_size=9, **SIZE)
GRU = RecurrentText(Gru(width=8, words=4), 9)
RESNET = built(ResNet, blocks=(1,), stem=4)
CONVOLUTION = P("kernel_row", "kernel_column", "channel", "embed")


@pytest.mark.parametrize(
    ("module", "inputs", "path", "spec"),
    [
        (VIT, IMAGES, "class_embedding", P("class_token", "embed")),
        (VIT, IMAGES, "position_embedding", P("position", "embed")),
        (VIT, IMAGES, "patch_embedding/kernel", P("patch_in", "embed")),
        (BERT, TEXTS, "token_embedding", P("vocab", "embed")),
        (BERT, TEXTS, "position_embedding", P("position", "embed")),
        (GRU, TEXTS, "token_embedding", P("vocab", "embed")),
        (GRU, TEXTS, "forward/hidden_kernel", P("embed", "gate")),
        (GRU, TEXTS, "forward/hidden_bias", P("gate")),
        (RESNET, IMAGES, "conv1/kernel", CONVOLUTION),
        (RESNET, IMAGES, "layer1_0/bn1/scale", P("embed")),
        (built(Projection, dim=4), TOKENS, "kernel", P("embed", "projection")),
        (lexical_head(range(9), use_bias=True), TOKENS, "kernel", P("vocab", "embed")),
        (lexical_head(range(9), use_bias=True), TOKENS, "bias", P("vocab")),
        (Attention(2, INITS), TOKENS, "query/kernel", P("embed", "heads")),
        (Attention(2, INITS), TOKENS, "value/bias", P("heads")),
        (Attention(2, INITS), TOKENS, "out/kernel", P("heads", "embed")),
        (FeedForward(16, INITS), TOKENS, "fc1/kernel", P("embed", "mlp")),
        (FeedForward(16, INITS), TOKENS, "fc2/kernel", P("mlp", "embed")),
        (FeedForward(16, INITS), TOKENS, "fc2/bias", P("embed")),
        (LayerNorm(), TOKENS, "scale", P("embed")),
        (LayerNorm(), TOKENS, "bias", P("embed")),
    ],
)
def test_logical_names(module: Any, inputs: tuple[jax.Array, ...], path: str, spec: P) -> None:
    boxed = jax.eval_shape(module.init, jax.random.key(0), *inputs)
    leaves = jax.tree.leaves(boxed["params"], is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata))
    assert all(isinstance(leaf, nn.LogicallyPartitioned) for leaf in leaves)
    specs = traverse_util.flatten_dict(nn.get_partition_spec(boxed)["params"], sep="/")
    assert specs[path] == spec
