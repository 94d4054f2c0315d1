"""Fused attention: kernels against float32, in the towers, and their choice."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from big_retrieval.config import Bert, ImageField, Projection, ViT
from big_retrieval.models import attention, towers
from big_retrieval.models.attention import choose_kernel
from big_retrieval.models.bert import TextTransformer
from big_retrieval.models.plain_attention import rounded_attention
from big_retrieval.models.towers import RetrievalModel
from big_retrieval.models.tpu_attention import group_width, joint_kernel, tpu_attention
from big_retrieval.models.tpu_attention_body import Spec
from big_retrieval.models.vit import VisionTransformer
from big_retrieval.parallel import AXES, RULES
from tests.arrays import device_mesh
from tests.helpers import drawn, user_error

SIZE: dict[str, Any] = {"width": 128, "depth": 1, "heads": 2, "mlp": 32}


@pytest.fixture
def tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Towers choose the kernel of TPUs, which is interpreted on CPUs."""
    monkeypatch.setattr(attention, "traced_platform", lambda: "tpu")


def split_joint(x: jax.Array, heads: int) -> list[jax.Array]:
    """Query, key and value [B, L, H, d] of a joint product."""
    batch, length, width = x.shape[0], x.shape[1], x.shape[2] // 3
    n = group_width(width, heads)
    groups = x.reshape(batch, length, width // n, 3, n)
    return [groups[:, :, :, i].reshape(batch, length, heads, -1) for i in range(3)]


def formula(x: jax.Array, bias: jax.Array, row: jax.Array | None, spec: Spec) -> jax.Array:
    """Attention in float32 or wider from the joint product."""
    q, k, v = split_joint((x + bias.astype(x.dtype)).astype(jnp.float32), spec.heads)
    length = x.shape[1]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, precision="highest") * q.shape[-1] ** -0.5
    scores += jnp.where(np.arange(length) < spec.keys, 0, -1e30)
    scores += 0 if row is None else row[:, None, None]
    scores += jnp.where(np.tril(np.ones((length, length), bool)), 0, -1e30) if spec.causal else 0
    weights = jax.nn.softmax(scores, -1)
    y = jnp.einsum("bhqk,bkhd->bqhd", weights, v, precision="highest")
    return y.reshape(*x.shape[:2], -1)


def errors(found: Any, expected: Any) -> list[float]:
    """Largest difference of each array, relative to its largest value."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    arrays = ((np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs)
    return [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in arrays]


LENGTHS = np.array([24, 9, 1, 24])
CASES = [  # head size, width, length, keys, causal, row
    (64, 256, 24, 21, False, ""),
    (64, 128, 24, 24, True, "mask"),
    (32, 128, 24, 21, False, "mask"),
    (128, 256, 16, 15, False, "shared"),
    (80, 640, 16, 16, False, ""),
    (96, 384, 24, 24, True, ""),
    (64, 128, 520, 517, True, ""),  # three passes over the queries
]


@pytest.mark.parametrize(
    ("dtype", "case"),
    [(jnp.float32, case) for case in CASES] + [(jnp.bfloat16, case) for case in CASES[:2]],
)
def test_kernels_equal_the_formula(dtype: Any, case: Any) -> None:
    size, width, length, keys, causal, kind = case
    random = np.random.default_rng(0)
    x, dy = (random.normal(size=(4, length, n)) for n in (3 * width, width))
    x, dy = jnp.asarray(x, dtype), jnp.asarray(dy, dtype)
    bias = jnp.asarray(random.normal(size=3 * width), jnp.float32)
    row = None
    if kind == "mask":
        row = jnp.where(np.arange(length) < LENGTHS[:, None], 0.0, -1e30)
    elif kind == "shared":
        row = jnp.where(np.arange(length)[None] < 4, -np.log(4), 0.0)
    spec = Spec(width // size, keys, causal)

    def run(attend: Any) -> Any:
        def both(x: jax.Array, bias: jax.Array, dy: jax.Array) -> Any:
            y, pull = jax.vjp(lambda x, bias: attend(x, bias, row, spec), x, bias)
            return y, pull(dy.astype(y.dtype))

        return jax.jit(both)(x, bias, dy)

    y, *gradients = errors(run(tpu_attention), run(formula))
    low = dtype == jnp.bfloat16  # 2^-9 = 0.002 is the rounding of one value
    assert y < (0.008 if low else 1e-5)
    assert max(gradients) < (0.03 if low else 1e-4)


def test_joint_kernel_keeps_groups_together() -> None:
    q, k, v = (jnp.full((1, 256), i) + jnp.arange(256) / 1000 for i in range(3))
    joint = joint_kernel([q, k, v], 4)
    np.testing.assert_array_equal(joint[0, ::128].astype(int), [0, 1, 2, 0, 1, 2])
    for array, expected in zip(split_joint(joint[None], 4), (q, k, v), strict=True):
        np.testing.assert_array_equal(array.reshape(1, 256), expected)


def computed(tower: nn.Module, params: Any, *args: Any) -> Any:
    """Output, intermediates and gradients of a tower."""

    @jax.jit
    def run(params: Any, *args: Any) -> Any:
        def loss(params: Any) -> Any:
            y, state = tower.apply(params, *args, mutable=["intermediates"])
            return jnp.sum(jnp.sin(y.astype(jnp.float32))), (y, state["intermediates"])

        return jax.value_and_grad(loss, has_aux=True)(params)

    return run(params, *args)


def image_case(**keys: Any) -> tuple[VisionTransformer, Any, tuple[Any, ...]]:
    """A tower of 9 + 3 tokens, its parameters and images."""
    tower = VisionTransformer(ViT(**{"patch": 4, "class_tokens": 3, **SIZE, **keys}))
    images = jnp.asarray(np.random.default_rng(0).normal(size=(4, 12, 12, 3)), jnp.float32)
    return tower, drawn(tower, images), (images,)


def text_case(**keys: Any) -> tuple[TextTransformer, Any, tuple[Any, ...]]:
    """A tower of 13 + 1 tokens, its parameters, ids and masks."""
    tower = TextTransformer(Bert(**{"class_tokens": 2, **SIZE, **keys}), 50)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 50, (4, 13)))
    args = (ids, jnp.arange(13) < jnp.array([[13], [5], [2], [9]]))
    return tower, drawn(tower, *args), args


def as_plain(tower: Any) -> Any:
    return tower.clone(spec=dataclasses.replace(tower.spec, attention="plain"))


def assert_equals_plain(tower: Any, params: Any, *args: Any) -> None:
    """Compares output, intermediates and gradients with attention 'plain'."""
    found, expected = computed(tower, params, *args), computed(as_plain(tower), params, *args)
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, expected)
    # The gradient of the keys' bias is 0 but for rounding: softmax ignores it.
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=2e-5), found, expected
    )


@pytest.mark.usefixtures("tpu")
@pytest.mark.parametrize(
    ("case", "keys"),
    [
        (image_case, {"tokens_as_one": True, "depth": 2, "scan": True, "remat": "block"}),
        (image_case, {"pool": "mean", "remat": "dots"}),
        (text_case, {"tokens_as_one": True}),
        (text_case, {"norm": "pre", "causal": True, "pool": "last", "scan": True}),
    ],
)
def test_towers_with_the_kernel_equal_plain_attention(case: Any, keys: Any) -> None:
    tower, params, args = case(attention="kernel", **keys)
    assert_equals_plain(tower, params, *args)


@pytest.mark.usefixtures("tpu")
def test_scan_joins_parameters_before_the_loop() -> None:
    tower, params, args = image_case(attention="kernel", depth=2, scan=True)
    program = jax.make_jaxpr(tower.apply)(params, *args)
    joint = "[128,1,3,128] = concatenate"
    (loop,) = (eqn for eqn in program.eqns if eqn.primitive.name == "scan")
    assert joint in str(program)
    assert joint not in str(loop)


@pytest.mark.usefixtures("tpu")
@pytest.mark.parametrize("manual", [False, True])
def test_sharded_kernel_equals_one_device(manual: bool) -> None:
    mesh = device_mesh(2, 2, 2)
    tower, params, (images,) = image_case(
        attention="kernel", width=256, heads=4, scan=True, remat="block"
    )
    expected = computed(tower, params, images)
    rules = [(k, v) for k, v in RULES if k != "batch"] if manual else RULES
    rules = [*rules, ("batch", "fsdp")] if manual else rules

    def loss(params: Any, images: jax.Array) -> jax.Array:
        y: Any = tower.apply(params, images)
        return jnp.sum(jnp.sin(y))

    def local(params: Any, images: jax.Array) -> Any:
        parts = images.reshape(2, images.shape[0] // 2, *images.shape[1:])  # micro-batches
        with nn.logical_axis_rules(rules):
            totals = jax.lax.map(lambda part: jax.value_and_grad(loss)(params, part), parts)
        total = jax.tree.map(lambda x: jnp.sum(x, 0), totals)
        return jax.lax.psum(total, "data") if manual else total

    specs: dict[str, Any] = {"in_specs": (P(), P("data")), "out_specs": P()}
    by_data = jax.shard_map(local, **specs, axis_names={"data"}, check_vma=False)
    run = by_data if manual else local
    with jax.set_mesh(mesh):
        images = jax.device_put(images, NamedSharding(mesh, P(("data", "fsdp"))))
        found = jax.jit(run)(params, images)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=5e-5)
    jax.tree.map(close, found, (expected[0][0], expected[1]))


def lowered(tower: Any, manual: bool, *args: jax.ShapeDtypeStruct) -> str:
    """The program of a tower's gradients for 8 TPUs, perhaps in a region manual over data."""
    device = jax.sharding.AbstractDevice("TPU v5e", None, "tpu")
    axis_types = (AxisType.Auto,) * 3
    mesh = jax.sharding.AbstractMesh((2, 2, 2), AXES, axis_types, abstract_device=device)
    params = nn.unbox(jax.eval_shape(tower.init, jax.random.key(0), *args))

    def gradients(params: Any, *args: Any) -> Any:
        return jax.grad(lambda params: jnp.sum(tower.apply(params, *args)))(params)

    def local(params: Any, *args: Any) -> Any:
        with nn.logical_axis_rules([("batch", "fsdp"), ("heads", "tensor")]):
            return jax.lax.psum(gradients(params, *args), "data")

    with jax.sharding.use_abstract_mesh(mesh), nn.logical_axis_rules(RULES):
        specs: dict[str, Any] = {"in_specs": (P(), *[P("data")] * len(args)), "out_specs": P()}
        by_data = jax.shard_map(local, **specs, axis_names={"data"}, check_vma=False)
        run = by_data if manual else gradients
        traced = jax.jit(run).trace(params, *args)
        return traced.lower(lowering_platforms=("tpu",)).as_text()


WIDE: dict[str, Any] = {"width": 512, "depth": 1, "heads": 8, "mlp": 32}
IMAGES = (jax.ShapeDtypeStruct((8, 16, 16, 3), jnp.float32),)
TEXTS = (jax.ShapeDtypeStruct((8, 13), jnp.int32), jax.ShapeDtypeStruct((8, 13), jnp.bool_))


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("case", ["plain", "image", "one", "text"])
def test_tpu_programs_contain_the_kernel(case: str, manual: bool) -> None:
    image = functools.partial(ViT, patch=4, class_tokens=2, **WIDE)
    if case == "text":
        text = lowered(TextTransformer(Bert(**WIDE), 50, 13, jnp.bfloat16), manual, *TEXTS)
    else:
        choice: Any = "plain" if case == "plain" else "auto"
        spec = image(attention=choice, tokens_as_one=case == "one")
        text = lowered(VisionTransformer(spec, jnp.bfloat16), manual, *IMAGES)
    for name in ("attention_forward", "attention_backward"):
        assert (name in text) == (case != "plain")


@pytest.mark.usefixtures("tpu")
@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"dropout": 0.1}, "no dropout"),
        ({"heads": 8}, "head size 16"),
        ({"shape": (1, 8, 192), "heads": 3}, "3 heads of 64 per device do not fill"),
        ({"shape": (1, 4096, 128)}, "4096 tokens need"),
        ({"bias": jnp.zeros((1, 2, 8, 8))}, "biases depend on the query"),
        ({"dtype": jnp.float16}, "not in float16"),
    ],
)
def test_choose_kernel_falls_back_or_gives_the_reason(keys: dict[str, Any], reason: str) -> None:
    keys = {"shape": (1, 8, 128), "heads": 2, "dtype": jnp.float32, **keys}
    assert choose_kernel("auto", **keys) == "plain"
    with user_error("attention 'kernel'", reason):
        choose_kernel("kernel", **keys)


@pytest.mark.parametrize("case", [image_case, text_case])
def test_towers_with_cudnn_equal_plain_attention(
    case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """jax's attention replaces cuDNN; odd lengths are padded by a masked token."""
    attend = jax.nn.dot_product_attention

    def instead(*args: Any, implementation: str, **keys: Any) -> jax.Array:
        assert implementation == "cudnn"
        assert args[0].shape[1] % 2 == 0
        return attend(*args, **keys)

    monkeypatch.setattr(jax.nn, "dot_product_attention", instead)
    monkeypatch.setattr(attention, "traced_platform", lambda: "gpu")
    tower, params, args = case(attention="kernel", class_tokens=2 if case is image_case else 1)
    with jax.default_matmul_precision("highest"):
        assert_equals_plain(tower, params, *args)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [image_case, text_case])
def test_cudnn_equals_the_formula(case: Any) -> None:
    if jax.devices()[0].platform != "gpu":
        pytest.skip("needs a GPU")
    tower, params, args = case(attention="kernel", class_tokens=2 if case is image_case else 1)
    found = computed(tower.clone(dtype=jnp.bfloat16), params, *args)
    expected = computed(as_plain(tower), params, *args)
    for one in (found, expected):
        del one[1]["params"]["layers_0"]["attention"]["key"]["bias"]  # 0 but for rounding
    assert max(errors(found, expected)) < 0.05


def test_choose_kernel_by_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = functools.partial(choose_kernel, shape=(1, 8, 128), heads=2, dtype=jnp.bfloat16)
    assert choose("auto") == "plain"
    with user_error("this program is for cpu"):
        choose("kernel")
    monkeypatch.setattr(attention, "traced_platform", lambda: "gpu")
    monkeypatch.setattr(jax.nn, "dot_product_attention", lambda q, *rest, **keys: q)
    assert choose("auto") == "gpu"
    assert choose("plain") == "plain"
    assert choose("auto", bias=jnp.zeros((1, 1, 1, 8))) == "plain"
    mesh = jax.sharding.AbstractMesh((2, 2, 1), AXES, (AxisType.Manual, *[AxisType.Auto] * 2))
    with jax.sharding.use_abstract_mesh(mesh), nn.logical_axis_rules(RULES):
        assert choose("auto") == "plain"

    def absent(*args: Any, **keys: Any) -> None:
        raise RuntimeError("cuDNN is not detected.")

    monkeypatch.setattr(jax.nn, "dot_product_attention", absent)
    with user_error("cannot run: cuDNN is not detected"):
        choose("kernel")


def test_flops_do_not_depend_on_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def count() -> int:
        field = ImageField(size=16, tower="tower", head=Projection())
        tower = ViT(**{**SIZE, "patch": 4})
        return RetrievalModel({"tower": tower}, {"field": field}, "sphere", 50).field_flops("field")

    expected = count()
    towers._flops.cache_clear()
    monkeypatch.setattr(attention, "traced_platform", lambda: "tpu")
    assert count() == expected


def test_rounded_attention_equals_automatic_differentiation() -> None:
    random = np.random.default_rng(0)
    q, k, v, dy = (jnp.asarray(random.normal(size=(2, 5, 2, 4)), jnp.float32) for _ in range(4))
    table = jnp.asarray(random.normal(size=(1, 2, 5, 5)), jnp.float32)
    mask = jnp.where(np.arange(5) < np.array([[5], [2]]), 0.0, -1e30)[:, None, None]

    def expected(*args: jax.Array) -> jax.Array:
        q, k, v, table = args
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2 + table + mask, -1)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v)

    def found(*args: jax.Array) -> jax.Array:
        q, k, v, table = args
        return rounded_attention(q, k, v, [table, mask])

    (y, pull), (same, pull_same) = (jax.vjp(f, q, k, v, table) for f in (found, expected))
    assert max(errors((y, pull(dy)), (same, pull_same(dy)))) < 1e-5
    q, k, v = (part.astype(jnp.bfloat16) for part in (q, k, v))
    low = rounded_attention(q, k, v, [table, mask])
    assert low.dtype == jnp.bfloat16
    assert errors(low, same)[0] < 0.02
