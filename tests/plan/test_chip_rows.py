from benchmarks import chips
from big_retrieval.config import Config


def figures(**changes: object) -> dict[str, object]:
    return {
        "total_bytes": 100, "temp_bytes": 60, "wire_bytes": 30.0, "exposed_wire_bytes": 10.4,
        "wire_bytes_by_collective": {"all-reduce": 20.0}, "loops_of_unknown_length": 0,
        "cycles": 850, "kernel_cycles": 100, "unestimated_cycles": 50, **changes,
    }  # fmt: skip


def test_rows_add_kernels_and_unestimated_operations_to_cycles() -> None:
    row = chips.make_row(figures(), pairs=4)
    assert (row["cycles"], row["kernel_cycles"], row["cycles_per_pair"]) == (1000, 100, 250)
    assert row["unestimated_cycles"] == 50
    assert (row["exposed_wire_bytes"], row["all_reduce_bytes"]) == (10, 20)
    text = chips.format_row("v5e-4 tiny", {**row, "mfu": 0.25, "compute_mfu": 0.5})
    assert "0.2k cycles/pair (10% kernels, 5% scatter, gather, sort)  MFU 25.0%" in text


def test_rows_of_gpus_have_no_cycles() -> None:
    row = chips.make_row(figures(cycles=None, kernel_cycles=None), pairs=4)
    assert "cycles" not in row
    assert "cycles" not in chips.format_row("h100-8 tiny", row)


def test_changes_name_what_grew_or_shrank() -> None:
    row = chips.make_row(figures(), pairs=4)
    assert chips.format_changes(row, row) == "unchanged"
    grown = {**row, "cycles": 1200, "hbm_bytes": 50}
    assert chips.format_changes(grown, row) == "cycles +20.0%, hbm_bytes -50.0%"


def test_configs_are_changed_by_flags() -> None:
    config = chips.load_config("emoji", "mesh.data=2,dtype=float32", depth=3)
    assert isinstance(config, Config)
    assert (config.mesh.data, config.dtype) == (2, "float32")
    assert {tower.depth for tower in config.towers.values()} == {3}  # type: ignore
