"""Operations by tracing, against hand counts and published numbers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from big_retrieval.config import RESNET_SIZES, Bert, ImageField, Projection, ResNet, TextField, ViT
from big_retrieval.models import flops
from big_retrieval.models.towers import RetrievalModel

SMALL: Any = {"width": 16, "depth": 3, "heads": 2, "mlp": 32}


def counted(tower: Any, field: Any, dim: int | None = None, **how: Any) -> int:
    field = dataclasses.replace(field, tower="tower", head=Projection(dim=dim))
    model = RetrievalModel({"tower": tower}, {"field": field}, "sphere", 50)
    return model.field_flops("field", **how)


def layers(length: int) -> int:
    """Per layer: four projections, scores and sums of attention, two dense layers."""
    return SMALL["depth"] * 2 * length * (4 * 16 * 16 + 2 * length * 16 + 2 * 16 * 32)


@pytest.mark.parametrize("how", [{}, {"scan": True}, {"remat": "block"}])
def test_flops_of_vit(how: Any) -> None:
    count = counted(ViT(patch=8, class_tokens=2, **SMALL, **how), ImageField(size=32), dim=6)
    assert count == 2 * 16 * (3 * 8 * 8) * 16 + layers(18) + 2 * 2 * 16 * 6


def test_flops_of_bert() -> None:
    assert counted(Bert(class_tokens=2, **SMALL), TextField(length=12)) == layers(13)
    clip: Any = {"norm": "pre", "causal": True, "pool": "last"}
    assert counted(Bert(**clip, **SMALL), TextField(length=12)) == layers(12)


def test_flops_of_resnet() -> None:
    tower = ResNet(stem=8, blocks=(1, 1), bottleneck=False)
    stem = 17**2 * 7 * 7 * 3 * 8
    first = 2 * 9**2 * 9 * 8 * 8
    second = 5**2 * (9 * 8 * 16 + 9 * 16 * 16 + 8 * 16)
    assert counted(tower, ImageField(size=33)) == 2 * (stem + first + second)


def test_flops_equal_published_numbers() -> None:
    """Multiply-adds at 224 pixels: ViT-B/16 17.56 G, ResNets 4.09 and 1.81 G with their `fc`."""
    image = ImageField(size=224)
    assert counted(ViT(), image) == pytest.approx(2 * 17.56e9, rel=2e-3)
    for depth, total, fc in ((50, 4.09e9, 2048 * 1000), (18, 1.81e9, 512 * 1000)):
        blocks, bottleneck = RESNET_SIZES[depth]
        count = counted(ResNet(blocks=blocks, bottleneck=bottleneck), image)
        assert count / 2 + fc == pytest.approx(total, rel=3e-3)


def test_flops_of_backward_pass_and_remat() -> None:
    field = TextField(length=12)
    plain = counted(Bert(**SMALL), field, backward=True)
    assert plain == 3 * layers(12)
    block = counted(Bert(remat="block", **SMALL), field, backward=True)
    assert block - plain == layers(12)
    dots = counted(Bert(remat="dots", **SMALL), field, backward=True)
    assert dots - plain == 3 * 4 * 12 * 12 * 16


def test_flops_of_branches_and_inner_programs() -> None:
    x, w = jnp.ones((3, 4)), jnp.ones((4, 4))

    @jax.custom_vjp
    def multiply(x: Any) -> Any:
        return x @ w

    multiply.defvjp(lambda x: (multiply(x), None), lambda _, g: (g,))

    def program(x: Any) -> Any:
        x = jax.lax.cond(x[0, 0] > 0, lambda y: y @ w @ w, lambda y: y @ w, x)
        return jax.jit(jax.checkpoint(multiply))(x)

    assert flops.traced_flops(program, x) == 3 * 2 * 3 * 4 * 4
