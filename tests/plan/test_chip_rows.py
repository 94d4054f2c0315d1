"""Rows of `benchmarks.chips`: sums of cycles, and changes against stored rows."""

from benchmarks import chips


def row_of(**changes: object) -> dict[str, object]:
    figures = {
        "total_bytes": 100, "temp_bytes": 60, "wire_bytes": 30.0, "exposed_wire_bytes": 10.4,
        "wire_bytes_by_collective": {"all-reduce": 20.0}, "loops_of_unknown_length": 0,
        "cycles": 850, "kernel_cycles": 100, "unestimated_cycles": 50, **changes,
    }  # fmt: skip
    return chips.make_row(figures, pairs=4)


def test_make_row_adds_kernels_and_unestimated_operations() -> None:
    row = row_of()
    assert (row["cycles"], row["kernel_cycles"], row["cycles_per_pair"]) == (1000, 100, 250)
    assert (row["exposed_wire_bytes"], row["all_reduce_bytes"]) == (10, 20)
    assert "cycles" not in row_of(cycles=None, kernel_cycles=None)  # of a GPU


def test_format_changes_names_larger_and_smaller_costs() -> None:
    row = row_of()
    assert chips.format_changes(row, row) == "unchanged"
    changed = chips.format_changes({**row, "cycles": 1200, "hbm_bytes": 50}, row)
    assert changed == "cycles +20.0%, hbm_bytes -50.0%"
