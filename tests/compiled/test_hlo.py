import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from big_retrieval.compiled import hlo
from big_retrieval.compiled.collectives import Collective, by_kind
from big_retrieval.compiled.collectives import collectives as collectives_of
from big_retrieval.compiled.hlo import shape_bytes

GPU = """HloModule jit_f, is_scheduled=true, num_partitions=8

%async_computation (p: f32[64,4]) -> f32[16,4] {
  %p = f32[64,4]{1,0} parameter(0)
  ROOT %rs = f32[16,4]{1,0} reduce-scatter(%p), replica_groups=[2,4]<=[8], to_apply=%add
}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%body.1 (t: (s32[], bf16[2,4])) -> (s32[], bf16[2,4]) {
  %t = (s32[], bf16[2,4]{1,0:T(8,128)(2,1)S(1)}) parameter(0)
  %cp = (bf16[2,4]{1,0}, bf16[2,4]{1,0}, u32[], u32[]) collective-permute-start(%t), \
source_target_pairs={{0,1},{1,0}}
  %cpd = bf16[2,4]{1,0:T(8,128)(2,1)S(1)} collective-permute-done(%cp)
  ROOT %r = (s32[], bf16[2,4]{1,0}) tuple(%t, %cpd)
}

%cond.1 (t: (s32[], bf16[2,4])) -> pred[] {
  %t = (s32[], bf16[2,4]{1,0}) parameter(0)
  ROOT %lt = pred[] constant(true)
}

ENTRY %main (x: f32[64,4]) -> f32[16,4] {
  %x = f32[64,4]{1,0} parameter(0)
  %ag = (f32[8,4]{1,0}, f32[16,4]{1,0}) all-gather-start(%x), replica_groups={{0,1},{2,3}}, \
metadata={op_name="jit(f)/gather"}
  %agd = f32[16,4]{1,0} all-gather-done(%ag)
  %w = (s32[], bf16[2,4]{1,0}) while(%x), condition=%cond.1, body=%body.1
  %as = ((f32[64,4]{1,0}), f32[16,4]{1,0}) async-start(%x), calls=%async_computation
  ROOT %asd = f32[16,4]{1,0} async-done(%as)
}
"""


def collectives(text: str) -> list[Collective]:
    return collectives_of(hlo.parse_module(text))


def test_asynchronous_collectives_count_once() -> None:
    gather, permute, scatter = collectives(GPU)
    assert gather == Collective("all-gather", 256, 1, 2)
    assert (permute.kind, permute.bytes, permute.trips) == ("collective-permute", 16, 1)
    assert (scatter.kind, scatter.bytes, scatter.group) == ("reduce-scatter", 256, 4)


@pytest.mark.parametrize(
    ("between", "overlapped"),
    [
        ("f32[16,4]{1,0} bitcast(%x)", False),
        ("f32[4]{0} fusion(%tiny), kind=kLoop, calls=%add", False),
        ("f32[16,4]{1,0} fusion(%x), kind=kLoop, calls=%add", True),  # 1280 bytes, more than 256
        ("f32[4]{0} fusion(%tiny), kind=kOutput, calls=%product", True),
        ("(f32[4]) while(%tiny), condition=%test, body=%product", True),
        ('f32[4]{0} custom-call(%tiny), custom_call_target="__cublas$gemm"', True),
        ('f32[4]{0} custom-call(%tiny), custom_call_target="Sharding"', False),
    ],
)
def test_overlap_needs_products_or_bytes(between: str, overlapped: bool) -> None:
    product = (
        "%product (a: f32[4]) -> f32[] {\n  %a = f32[4] parameter(0)\n"
        "  ROOT %d = f32[] dot(%a, %a)\n}\n\nENTRY"
    )
    line = "  %agd = f32[16,4]{1,0} all-gather-done(%ag)"
    text = GPU.replace(line, f"  %tiny = f32[4]{{0}} bitcast(%x)\n  %b = {between}\n{line}")
    gather, *_ = collectives(text.replace("ENTRY", product))
    assert gather.overlapped is overlapped


def test_wire_bytes_are_received_bytes() -> None:
    gather, permute, scatter = collectives(GPU)
    assert gather.wire_bytes == 128  # half of the result is there already
    assert permute.wire_bytes == 16
    assert scatter.wire_bytes == 3 * 256
    assert by_kind([gather, permute, gather]) == {"all-gather": 256, "collective-permute": 16}
    assert Collective("all-reduce", 100, 3, 4).wire_bytes == 3 * 100 * 2 * 3 / 4


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[8,128]{1,0}", 4096),
        ("bf16[3]", 6),
        ("pred[5]", 5),
        ("s4[3]", 2),
        ("f8e4m3fn[7]", 7),
        ("f32[]", 4),
        ("(f32[2], /*index=1*/u8[<=3])", 11),
    ],
)
def test_shape_bytes(text: str, size: int) -> None:
    assert shape_bytes(text) == size


def test_nested_trip_counts_multiply() -> None:
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    hop = [(k, (k + 1) % 8) for k in range(8)]

    def body(_: int, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, y = found
        y = jax.lax.fori_loop(0, 3, lambda _, w: w + jax.lax.psum(w, "d") / 8, y)
        return jax.lax.ppermute(x, "d", hop), y

    def f(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, y = jax.lax.fori_loop(0, 5, body, (x, y))
        z = jax.lax.psum_scatter(jax.lax.all_gather(x, "d", tiled=True) ** 2, "d", tiled=True)
        return z, jax.lax.all_to_all(y, "d", 0, 1, tiled=True)

    spec = P("d")
    g = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 128), (64, 256))]
    found = collectives(g.lower(*shapes).compile().as_text() or "")
    assert {(c.kind, c.bytes, c.trips, c.group) for c in found} == {
        ("collective-permute", 8 * 128 * 4, 5, 8),
        ("all-reduce", 8 * 256 * 4, 15, 8),
        ("all-gather", 64 * 128 * 4, 1, 8),
        ("reduce-scatter", 8 * 128 * 4, 1, 8),
        ("all-to-all", 8 * 256 * 4, 1, 8),
    }


def test_parse_module_rejects_other_texts() -> None:
    with pytest.raises(ValueError, match="no ENTRY"):
        collectives("hello")


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1},{2,3}}", 2),
        ("[2,4]<=[8]", 4),
        ("mesh['data'=2,'fsdp'=2,'tensor'=2] {'fsdp'}", 2),
        ("mesh['data'=2,'fsdp'=2,'tensor'=2] {'data','tensor'}", 4),
    ],
)
def test_collectives_read_groups(groups: str, size: int) -> None:
    line = f"%sum = f32[4]{{0}} all-reduce(%x), channel_id=1, replica_groups={groups}, to_apply=%a"
    text = f"HloModule m, num_partitions=8\n\nENTRY %main (x: f32[4]) -> f32[4] {{\n  {line}\n}}\n"
    assert [c.group for c in collectives(text)] == [size]
