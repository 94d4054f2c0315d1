"""Operations by tracing: the same as the formulas where there are some."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from big_retrieval.config import Bert, ImageField, Projection, ResNet, TextField, ViT
from big_retrieval.models import flops

SMALL: Any = {"width": 16, "depth": 3, "heads": 2, "mlp": 32}
TOWERS = [
    (ViT(patch=8, class_tokens=2, **SMALL), ImageField(size=32)),
    (ViT(patch=8, scan=True, **SMALL), ImageField(size=32)),
    (ViT(patch=8, remat="block", **SMALL), ImageField(size=32)),
    (Bert(class_tokens=2, vocab_size=50, **SMALL), TextField(length=12)),
    (Bert(norm="pre", causal=True, pool="last", vocab_size=50, **SMALL), TextField(length=12)),
    (ResNet(stem=8, blocks=(1, 2)), ImageField(size=32)),
    (ResNet(stem=8, blocks=(1, 1), bottleneck=False), ImageField(size=33)),
]


@pytest.mark.parametrize(("tower", "field"), TOWERS)
def test_towers(tower: Any, field: Any) -> None:
    assert flops._traced_tower(tower, field, 50) == tower.flops(field)


def test_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    tower, field = TOWERS[0][0], ImageField(size=32, head=Projection(dim=6))
    known = flops.head_flops(field, tower, None, 50, "sphere")
    monkeypatch.setattr(Projection, "flops", lambda *args: None)
    assert flops.head_flops(field, tower, None, 50, "sphere") == known == 2 * 2 * 16 * 6


def test_branches_and_inner_programs() -> None:
    x, w = jnp.ones((3, 4)), jnp.ones((4, 4))

    @jax.custom_vjp
    def own(x: Any) -> Any:
        return x @ w

    own.defvjp(lambda x: (own(x), None), lambda _, g: (g,))

    def program(x: Any) -> Any:
        x = jax.lax.cond(x[0, 0] > 0, lambda y: y @ w @ w, lambda y: y @ w, x)
        return jax.jit(jax.checkpoint(own))(x)

    assert flops.traced_flops(program, x) == 3 * 2 * 3 * 4 * 4
