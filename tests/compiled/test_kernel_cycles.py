from pathlib import Path

import pytest

from big_retrieval.compiled.kernel_cycles import kernel_cycles, schedule_cycles
from big_retrieval.compiled.program import Kernel

# A shortened schedule of a kernel with a grid of 64 and a loop over 6 pairs of heads.
SCHEDULE = """= control target key start
LB: loop body
= control target key end

     0   :  { %s3878_s9 = smov 0 /* copy for cssa */  ;;  %s6427_s0 = inlined_call_operand.vmem }
   0x1 LB: > { %s3457_s10 = sadd.s32 4294967295, %s3857_s9 /* iteration index, stage = 1 */ }
   0x2   : > { %116 = sbr.rel (%p113_p2) target = $region28 }
   0x3   :  {}
   0x4   :  {} /* End region 26 */
   0x5 LB: >> { %s3908_s20 = sshll.u32 %s3861_s19, 7  ;;  %s155_s19 = sadd.s32 1, %s3861_s19 }
   0x6   : >> { %p152_p4 = scmp.ge.s32.totalorder %s155_s19, 6 /* loop exit test */ }
   0x7   : >> { %154 = sbr.rel (!%p152_p4) target = $region72 }
   0x8 PF: > { %s12_s9 = sadd.s32 1, %s3857_s9 /* copy for cssa */ }
   0x9   : > { %p9_p5 = scmp.ge.s32.totalorder %s12_s9, 66 /* loop exit test */ } /* End region 3 */
   0xa   :  { %11 = sbr.rel (!%p9_p5) target = $region83 }
"""


def test_bundles_count_per_iteration() -> None:
    assert schedule_cycles(SCHEDULE) == (2 + 66 * (6 + 6 * 3), 0)


def test_loop_with_computed_limit_counts_once() -> None:
    computed = SCHEDULE.replace("%s155_s19, 6 /*", "%s155_s19, %s7_s1 /*")
    assert schedule_cycles(computed) == (2 + 66 * (6 + 3), 1)


def test_consecutive_loops_are_separate() -> None:
    second = SCHEDULE.splitlines()[9:12]
    text = SCHEDULE.replace(
        "   0x8 PF", "\n".join([*second, "   0x8 PF"]).replace(", 6 /*", ", 5 /*")
    )
    assert schedule_cycles(text) == (2 + 66 * (6 + 6 * 3 + 5 * 3), 0)


@pytest.mark.parametrize(("name", "cycles"), [("bf16.gmra", 16), ("mubr.bf16.gmra", 8)])
def test_products_occupy_a_matrix_unit(name: str, cycles: int) -> None:
    products = f"{{ %1 = vmatmul.{name}.mxu0 %v1 ;;  %2 = vmatmul.msk.{name}.mxu1 %v2 }}"
    line = f"   0x4   : >> {products}"
    text = SCHEDULE.replace("   0x6   :", f"{line}\n{line}\n   0x6   :")
    busy = 2 * cycles  # of either unit; more than five bundles
    assert schedule_cycles(text) == (2 + 66 * (6 + 6 * busy), 0)


def test_kernel_cycles_add_calls_and_margin(tmp_path: Path) -> None:
    (tmp_path / "1795660732060260802-attention_forward.3-01-final_bundles.txt").write_text(SCHEDULE)
    name = "1795660732060260802-attention_forward.3-00-schedule-analysis_final_bundles.txt"
    (tmp_path / name).write_text("Schedule analysis:")
    shape = "bf16[64,216,768]{2,1,0:T(8,128)(2,1)}"
    kernel = Kernel("attention_forward.3", "tpu_custom_call", 12, shape)
    again = Kernel("attention_forward.4", "tpu_custom_call", 2, shape[:16])
    other = Kernel("fmha", "__cudnn$fmhaSoftmax", 12)
    cycles = kernel_cycles([kernel, other, again], tmp_path)
    assert cycles == {
        "attention_forward.3": round(12 * 1586 * 1.1),
        "attention_forward.4": round(2 * 1586 * 1.1),  # the compiler made one of both
    }
    with pytest.raises(ValueError, match=r"no schedule of the kernel mine\.1"):
        kernel_cycles([Kernel("mine.1", "tpu_custom_call", 1, "f32[8]")], tmp_path)
