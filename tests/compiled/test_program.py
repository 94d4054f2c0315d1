from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from big_retrieval.compiled import hlo
from big_retrieval.compiled.collectives import Collective
from big_retrieval.compiled.program import Kernel, part_of, read_program

# Instructions of a real program for v5e chips, shortened and put together.
TPU = (Path(__file__).parent / "tpu_excerpt.txt").read_text()
GPU = """HloModule jit_step, is_scheduled=true, num_partitions=8

%wrapped (p.0: s32[], p.1: s32[]) -> pred[] {
  %p.0 = s32[] parameter(0)
  %p.1 = s32[] parameter(1)
  ROOT %compare.0 = pred[] compare(%p.0, %p.1), direction=GT
}

%condition (carry.0: (s32[])) -> pred[] {
  %carry.0 = (s32[]) parameter(0)
  %counter.0 = s32[] get-tuple-element(%carry.0), index=0
  %limit.0 = s32[] constant(7)
  ROOT %fusion.0 = pred[] fusion(%limit.0, %counter.0), kind=kLoop, calls=%wrapped
}

%body (carry.1: (s32[])) -> (s32[]) {
  %carry.1 = (s32[]) parameter(0)
  %start.1 = (f32[4]{0}, f32[32]{0}) all-gather-start(%carry.1), replica_groups=[1,8]<=[8]
  %gemm.1 = (f32[8,8]{1,0}, s8[1024]{0}) custom-call(%carry.1), \
custom_call_target="__cublas$lt$matmul"
  %done.1 = f32[32]{0} all-gather-done(%start.1)
  %sum.1 = f32[32]{0} all-reduce-start(%done.1), replica_groups=[1,8]<=[8]
  %bitcast.1 = f32[32]{0} bitcast(%done.1)
  %sum-done.1 = f32[32]{0} all-reduce-done(%sum.1)
  %attention.1 = (bf16[8,12,64]{2,1,0}, u8[0]{0}) custom-call(%done.1), \
custom_call_target="__cudnn$fmhaSoftmax", \
metadata={op_name="jit(step)/jvp(RetrievalModel)/image/fmha"}
  ROOT %next.1 = (s32[]) tuple(%carry.1)
}

ENTRY %main (x.0: s32[]) -> (s32[]) {
  %x.0 = s32[] parameter(0)
  %tuple.0 = (s32[]) tuple(%x.0)
  ROOT %while.0 = (s32[]) while(%tuple.0), condition=%condition, body=%body
}
"""


def test_cycles_are_multiplied_by_trip_counts() -> None:
    program = read_program(TPU)
    # the layers' counter runs from 2 to 12; the other loop has no known limit
    assert program.cycles == 10 * (10 + 2000) + 7 + 50 + 3
    assert program.cycles_by_part == {
        "text/attention forward": 20_000,
        "rest": 100,
        "loss backward": 50,
        "optimizer": 7,
        "text/embedding backward": 3,
    }
    assert program.unknown_loops == 1


def test_collective_chains_count_once() -> None:
    gather, permute, scatter = read_program(TPU).collectives
    assert gather == Collective("all-gather", 512 * 512 * 2, 10, 4, overlapped=True)
    assert (permute.kind, permute.trips, permute.overlapped) == ("collective-permute", 10, False)
    assert (scatter.kind, scatter.bytes, scatter.group) == ("reduce-scatter", 96 * 160 * 4, 4)
    program = read_program(TPU)
    assert program.overlapped_wire_bytes == {"all-gather": gather.wire_bytes}
    assert program.wire_bytes["reduce-scatter"] == 3 * 96 * 160 * 4


def test_kernels_have_calls() -> None:
    kernel = read_program(TPU).kernels[0]
    assert replace(kernel, type="") == Kernel("attention.7", "tpu_custom_call", 10)


def test_arrays_have_padding() -> None:
    program = read_program(TPU)
    sizes = {array.type: (array.bytes, array.padded_bytes) for array in program.arrays}
    expected = 64 * 12 * 50 * 50 * 4, 64 * 12 * 56 * 128 * 4
    assert sizes["f32[64,12,50,50]{2,3,1,0:T(8,128)}"] == expected
    assert not any("S(1)" in array.type for array in program.arrays)  # in VMEM
    origins = [array.origin for array in program.arrays if array.type.startswith("f32[96,640]")]
    assert origins == ["state.params['text']['kernel']"]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("bf16[64,212,768]{2,1,0:T(8,128)(2,1)}", 64 * 216 * 768 * 2),
        ("f32[12,50]{0,1:T(8,128)}", 128 * 56 * 4),
        ("f32[3,130]{1,0:T(2,128)S(1)}", 4 * 256 * 4),
        ("f32[100]{0:T(8,128)}", 8 * 128 * 4),
        ("f32[]{:T(128)}", 512),
        ("pred[1000]{0:T(1024)(128)(4,1)}", 1024),
        ("f32[12,50]{0,1}", 2400),
    ],
)
def test_padded_bytes(text: str, size: int) -> None:
    assert [array.padded_bytes for array in hlo.array_types(text)] == [size]


def test_gpu_program_has_kernels_and_overlaps() -> None:
    program = read_program(GPU)
    assert program.cycles is None
    assert program.cycles_by_part == {}
    assert program.unknown_loops == 0
    assert [(c.kind, c.trips, c.overlapped) for c in program.collectives] == [
        ("all-gather", 7, True),
        ("all-reduce", 7, False),
    ]
    assert [(k.target, k.calls) for k in program.kernels] == [("__cudnn$fmhaSoftmax", 7)]


def test_read_program_of_a_cpu() -> None:
    @jax.jit
    def f(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y) @ y, x)

    program = read_program(f.lower(jnp.zeros((64, 64))).compile().as_text() or "")
    assert (program.cycles, program.kernels, program.collectives) == (None, [], [])
    assert program.unknown_loops == 0
    assert program.arrays[0].bytes >= 64 * 64 * 4


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("jit(step)/jvp()/while/body/closed_call/RetrievalModel/text_head/dot_general", "head"),
        ("jit(step)/jvp()/while/body/closed_call/RetrievalModel/sqrt", "head"),
        ("jit(step)/jvp(RetrievalModel)/image/while/body/Block/ln_1/mul", "image/norms"),
        ("jit(step)/jvp(RetrievalModel)/image/patch_embedding/conv", "image/embedding"),
        ("jit(step)/jvp(RetrievalModel)/image/while/body/closed_call/Block/add", "image/rest"),
        ("jit(step)/jvp()/shard_map/while/body/dot_general", "loss"),
    ],
)
def test_part_of(name: str, part: str) -> None:
    assert part_of(name) == f"{part} forward"
    assert part_of(name.replace("jvp", "transpose(jvp", 1)) == f"{part} backward"


def test_part_of_a_loop_over_layers() -> None:
    loop = "jit(step)/transpose(jvp(RetrievalModel))/image/while/body/closed_call"
    assert part_of(f"{loop}/transpose(jvp(Block))/mlp/fc1/dot_general") == "image/mlp backward"
    assert part_of(f"{loop}/jvp(Block)/ln_1/div") == "image/norms recomputed"
