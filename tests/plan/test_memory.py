"""The formulas against hand counts and against the compiler's accounting, float32 on CPUs."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from big_retrieval import parallel
from big_retrieval.config import Config, TermMask, Vdr, recipe
from big_retrieval.losses.contrastive import contrastive_loss
from big_retrieval.losses.pairwise import Execution
from big_retrieval.plan import loss_cost, memory
from big_retrieval.plan.vocabulary import with_words
from big_retrieval.similarity import topology
from big_retrieval.train.build import BuiltModel, build_model
from big_retrieval.train.step import abstract_batch, compile_step
from tests.helpers import ema, lexical_texts, tiny

VOCAB = 128
SIZE = {"width": 64, "depth": 2, "heads": 2, "mlp": 256}


_sized: dict[str, BuiltModel] = {}  # they take a second each, and nothing in them changes


def sized(
    devices: int = 1, vocab_size: int = VOCAB, tower: Any = None, **changes: Any
) -> BuiltModel:
    """Parts of a config whose activations outweigh its parameters."""
    towers = {
        f"towers__{name}__{key}": value
        for name in ("image", "text")
        for key, value in {**SIZE, **(tower or {})}.items()
    }
    config = tiny(**{"batch_size": 64, **towers, **changes})
    key = repr((config, devices, vocab_size))
    if key not in _sized:
        mesh = parallel.make_mesh(config, jax.devices()[:devices])
        _sized[key] = build_model(config, mesh, vocab_size=vocab_size, total_steps=10)
    return _sized[key]


def compiled(parts: BuiltModel) -> Any:
    batch = abstract_batch(parts.config, parts.mesh)
    return compile_step(parts.step, parts.abstract, batch, parts.mesh).memory_analysis()


def test_state_and_batch_are_exact() -> None:
    found = memory.state_bytes(sized())
    count = sum(sized().parameters.values())
    assert found["parameters"] == 4 * count
    assert found["optimiser"] == pytest.approx(8 * count, abs=64)  # two moments, counters
    config = sized().config
    pixels, length = config.fields["image"], config.fields["text"]
    row = 3 * getattr(pixels, "size") ** 2 + 5 * getattr(length, "length") + 1 + 4  # noqa: B009
    assert found["batch"] == 64 * row


def test_embeddings_of_lexical_heads_are_as_large_as_the_vocabulary() -> None:
    config = with_words(sized(**lexical_texts()).config, VOCAB)
    assert {tower.vocab_size for tower in config.towers.values()} == {VOCAB}  # type: ignore
    assert loss_cost.representations(config, 1) == 2 * 2 * 4 * 64 * VOCAB
    own = with_words(sized(**lexical_texts(), towers__text__vocab_size=200).config, VOCAB)
    assert [own.towers[name].vocab_size for name in ("text", "other")] == [200, VOCAB]  # type: ignore


def test_averages_and_fsdp_change_the_state() -> None:
    plain, averaged = sized(), sized(optimizer__averaging=ema(0.9))
    grown = memory.state_bytes(averaged)["optimiser"] - memory.state_bytes(plain)["optimiser"]
    assert grown == memory.state_bytes(plain)["parameters"]
    sharded = memory.state_bytes(sized(8, mesh__data=1, mesh__fsdp=8))
    whole = memory.state_bytes(plain)
    assert sharded["batch"] == whole["batch"] / 8
    assert whole["parameters"] / 8 <= sharded["parameters"] < whole["parameters"] / 6


def activations(parts: BuiltModel, **changes: Any) -> dict[str, int]:
    config: Config = dataclasses.replace(parts.config, **changes)
    return memory.activations(parts, config, "gpu")


def test_slices_and_devices_divide_what_is_kept() -> None:
    parts = sized(tower={"activation": "gelu", "remat": "block"})
    whole, slices = activations(parts), activations(parts, microbatch=16)
    assert slices["kept"] == pytest.approx(whole["kept"] / 4)
    assert slices["layer"] < whole["layer"] / 4  # and it takes over as much from the loss
    assert slices["gradients"] == whole["gradients"]
    sharded = sized(8, tower={"activation": "gelu", "remat": "block"})
    assert activations(sharded)["kept"] == pytest.approx(whole["kept"] / 8)


@pytest.mark.slow
def test_remat_keeps_less_and_depth_counts_linearly() -> None:
    parts = sized()

    def kept(platform: str = "gpu", **changes: Any) -> int:
        towers = {n: dataclasses.replace(t, **changes) for n, t in parts.config.towers.items()}
        config = dataclasses.replace(parts.config, towers=towers)
        return memory.activations(parts, config, platform)["kept"]

    block, dots, plain = kept(remat="block"), kept(remat="dots"), kept()
    assert 3 * block < dots < plain
    # On CPUs the recomputation of unrolled layers is merged away.
    assert kept("cpu", remat="block") == plain
    assert 2 * kept(depth=6) == pytest.approx(kept(depth=4) + kept(depth=8))
    assert kept(depth=8) > 1.5 * kept(depth=4)


def test_bfloat16_keeps_less_than_float32_but_more_than_half() -> None:
    wide, narrow = activations(sized())["kept"], activations(sized(dtype="bfloat16"))["kept"]
    assert 0.5 * wide < narrow < 0.8 * wide


def test_dropout_keeps_its_masks() -> None:
    assert activations(sized(tower={"dropout": 0.1}))["kept"] > activations(sized())["kept"]


CASES = {
    "unrolled": {},
    "scan, block": {"tower": {"remat": "block", "scan": True}},
    "slices": {"tower": {"remat": "block", "scan": True}, "microbatch": 16, "batch_size": 256},
    "exact gelu": {"tower": {"activation": "gelu"}},
    "scan": {"tower": {"activation": "gelu", "scan": True}},
    "dots": {"tower": {"activation": "gelu", "remat": "dots", "scan": True}},
    "post": {"towers__text__norm": "post", "tower": {"activation": "gelu"}},
    "eight devices": {"devices": 8, "batch_size": 512, "tower": {"activation": "gelu"}},
}
FAST = ("unrolled",)


@pytest.mark.parametrize(
    "case", [c if c in FAST else pytest.param(c, marks=pytest.mark.slow) for c in CASES]
)
def test_formulas_agree_with_the_compiler(case: str) -> None:
    parts = sized(**{"batch_size": 256, **CASES[case]})
    found, analysis = memory.per_device(parts, "cpu"), compiled(parts)
    arguments = found["parameters"] + found["optimiser"] + found["batch"]
    assert arguments == pytest.approx(analysis.argument_size_in_bytes, rel=0.01)
    assert found["total"] - arguments == pytest.approx(analysis.temp_size_in_bytes, rel=0.15)


CODE = Vdr(top_k=64, symmetric=True, mask=TermMask("both", "bag", 0.5))
LEXICAL: dict[str, tuple[int, str, Any]] = {  # length, pooling, loss; short texts: the loss is most
    "max": (60, "max", None),
    "mean": (60, "mean", None),
    "two terms": (16, "max", Vdr(top_k=64)),
    "four terms": (16, "max", Vdr(top_k=64, symmetric=True)),
    "code": (16, "max", CODE),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LEXICAL)
def test_lexical_heads_agree_with_the_compiler(case: str) -> None:
    towers = {f"towers__{t}__{k}": size for t in ("text", "other") for k, size in SIZE.items()}
    length, pooling, loss = LEXICAL[case]
    lengths = {f"fields__{name}__length": length for name in ("query", "document")}
    changes = lexical_texts(pooling=pooling) | towers | lengths
    changes |= {} if loss is None else {"losses__main": recipe.entry(loss)}
    parts = sized(vocab_size=8000, batch_size=256, **changes)
    found, analysis = memory.per_device(parts, "cpu"), compiled(parts)
    arguments = found["parameters"] + found["optimiser"] + found["batch"]
    assert arguments == pytest.approx(analysis.argument_size_in_bytes, rel=0.01)
    assert found["total"] - arguments == pytest.approx(analysis.temp_size_in_bytes, rel=0.15)


def loss_temp(rows: int, devices: int, exchange: Any, name: str) -> int:
    """Temporary bytes of the loss alone, with all gradients, as compiled; 16 x 32 embeddings."""

    def loss(query: jax.Array, document: jax.Array, t: jax.Array) -> jax.Array:
        execution = Execution(exchange)
        return contrastive_loss(
            query, document, topology=topology(name), logit_scale=jnp.exp(t), execution=execution
        )[0]

    t = jax.ShapeDtypeStruct((), jnp.float32)
    mesh = jax.make_mesh(
        (devices,), ("data",), devices=jax.devices()[:devices], axis_types=(AxisType.Auto,)
    )
    sharded, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    side = jax.ShapeDtypeStruct((rows, 16, 32), jnp.float32, sharding=sharded)
    step = jax.value_and_grad(loss, argnums=(0, 1, 2))
    with jax.set_mesh(mesh):
        program = jax.jit(step, out_shardings=(whole, (sharded, sharded, whole)))
        analysis: Any = program.lower(side, side, t).compile().memory_analysis()
    return analysis.temp_size_in_bytes


@pytest.mark.parametrize(
    ("rows", "devices", "exchange", "name"),
    [
        (8192, 1, "auto", "oblique"),
        (131072, 1, "auto", "oblique"),
        (8192, 1, "auto", "geodesic"),
        (24576, 8, "gather", "oblique"),
        (24576, 8, "ring", "oblique"),
        (24576, 8, "ring", "geodesic"),
    ],
)
def test_the_loss_alone(rows: int, devices: int, exchange: Any, name: str) -> None:
    tower = {"class_tokens": 16}
    heads = {f"fields__{field}__head__dim": 32 for field in ("image", "text")}
    parts = sized(
        tower=tower, batch_size=rows, topology=name, losses__main__exchange=exchange, **heads
    )
    formula = loss_cost.loss(parts.config, devices, "cpu")
    assert formula == pytest.approx(loss_temp(rows, devices, exchange, name), rel=0.15)


def test_large_sides_go_around_a_ring() -> None:
    heads = {f"fields__{field}__head__dim": 512 for field in ("image", "text")}
    tower = {"class_tokens": 1}
    modes = [
        loss_cost.exchange_mode(sized(tower=tower, batch_size=rows, **heads).config)
        for rows in (2**17, 2**17 + 8)
    ]
    assert modes == ["gather", "ring"]
