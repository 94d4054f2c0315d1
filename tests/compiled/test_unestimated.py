from big_retrieval.compiled.program import read_program
from big_retrieval.compiled.unestimated import Unestimated

# The embedding's gradient, a sort and searches for v5e chips, shortened and put together.
TPU = """HloModule jit_step, is_scheduled=true

%scatter_computation (table.1: f32[30522,512], rows.1: s32[1000], updates.1: f32[1000,512]) -> f32[30522,512] {
  %table.1 = f32[30522,512]{1,0:T(8,128)} parameter(0)
  %rows.1 = s32[1000]{0:T(1024)S(1)} parameter(1)
  %updates.1 = f32[1000,512]{1,0:T(8,128)} parameter(2)
  %gather.1 = f32[1000,512]{1,0:T(8,128)} gather(%updates.1, %rows.1), offset_dims={1}, slice_sizes={1,512}
  ROOT %scatter.1 = f32[30522,512]{1,0:T(8,128)} scatter(%table.1, %rows.1, %gather.1), update_window_dims={1}, inserted_window_dims={0}
}

%outer_computation (table.2: f32[30522,512], rows.2: s32[1000], updates.2: f32[1000,512]) -> f32[30522,512] {
  %table.2 = f32[30522,512]{1,0:T(8,128)} parameter(0)
  %rows.2 = s32[1000]{0:T(1024)S(1)} parameter(1)
  %updates.2 = f32[1000,512]{1,0:T(8,128)} parameter(2)
  ROOT %scatter_fusion.2 = f32[30522,512]{1,0:T(8,128)} fusion(%table.2, %rows.2, %updates.2), kind=kCustom, calls=%scatter_computation
}

%body (carry.1: (s32[], s32[256,300])) -> (s32[], s32[256,300]) {
  %carry.1 = (s32[], s32[256,300]{1,0:T(8,128)}) parameter(0)
  %keys.1 = s32[256,300]{1,0:T(8,128)} get-tuple-element(%carry.1), index=1
  %sort.1 = (s32[256,300]{1,0:T(8,128)}, s32[256,300]{1,0:T(8,128)}) sort(%keys.1, %keys.1), dimensions={1}, to_apply=%compare
  %search.1 = (f32[256,8]{1,0:T(8,128)}, s32[256,8]{1,0:T(8,128)}) custom-call(%keys.1), custom_call_target="TopK"
  %elements.1 = s32[400]{0:T(1024)} gather(%keys.1, %keys.1), offset_dims={}, slice_sizes={1,1}
  ROOT %tuple.1 = (s32[], s32[256,300]{1,0:T(8,128)}) tuple(%carry.1, %keys.1)
}

%test (carry.2: (s32[], s32[256,300])) -> pred[] {
  ROOT %carry.2 = (s32[], s32[256,300]{1,0:T(8,128)}) parameter(0)
}

ENTRY %main (table: f32[30522,512], rows: s32[1000], updates: f32[1000,512]) -> f32[30522,512] {
  %table = f32[30522,512]{1,0:T(8,128)} parameter(0)
  %rows = s32[1000]{0:T(1024)S(1)} parameter(1)
  %updates = f32[1000,512]{1,0:T(8,128)} parameter(2)
  %loop = (s32[], s32[256,300]{1,0:T(8,128)}) while(%table), condition=%test, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %with_estimate = f32[30522,512]{1,0:T(8,128)} fusion(%table, %rows, %updates), kind=kCustom, calls=%scatter_computation, backend_config={"estimated_cycles":"77"}
  ROOT %without = f32[30522,512]{1,0:T(8,128)} fusion(%table, %rows, %updates), kind=kCustom, calls=%outer_computation
}
"""  # noqa: E501


def test_unestimated_operations_count_by_rules() -> None:
    program = read_program(TPU)
    assert program.cycles == 77
    assert program.unestimated == [
        Unestimated("top-k", "s32[256,300]", 3, round(3 * 256 * 8 * (18 + 0.6))),
        # 45 stages for up to 512 elements; loops run three times
        Unestimated("sort", "s32[256,300]", 3, round(3 * 0.008 * 256 * 300 * 45)),
        Unestimated("scatter", "f32[1000,512]", 1, 1000 * (9 + 3 * 4)),  # its gather is part of it
        Unestimated("gather", "s32[400]", 3, 3 * 400 * 5),
    ]


def test_other_platforms_have_no_unestimated_operations() -> None:
    without = TPU.replace(', backend_config={"estimated_cycles":"77"}', "")
    assert read_program(without).unestimated == []
