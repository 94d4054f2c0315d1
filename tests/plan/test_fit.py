"""The search for settings that fit, with memory from a formula in the compiler's place."""

import dataclasses
from typing import Any

from big_retrieval.config import Config
from big_retrieval.plan import fit
from tests.plan.test_cost import sized

ROWS = 8


class Compilers:
    """Compiles by a formula: state + bytes of a row that depend on remat."""

    def __init__(self, limit: float, state: float = 100.0) -> None:
        self.limit, self.state, self.tried = limit, state, []

    def __call__(self, config: Config, flags: list[str]) -> fit.Trial:
        self.tried.append(flags)
        block = all(getattr(tower, "remat") == "block" for tower in config.towers.values())  # noqa: B009
        row = 1 if block else 8
        state = self.state / config.mesh.fsdp
        total = state + row * (config.microbatch or config.batch_size)
        program: dict[str, Any] = {
            "total_bytes": total, "argument_bytes": state, "seconds": 1.0, "cycles": 100,
            "kernel_cycles": 0, "unestimated_cycles": 0,
        }  # fmt: skip
        again = 0.5 * block + (config.microbatch is not None)
        times: Any = {"step": 1.0 + again, "mfu": 0.5}
        return fit.Trial(
            config, flags, program, {"towers": round(4 + 2 * again)}, times, total <= self.limit
        )


def search(compilers: Compilers, **changes: Any) -> list[fit.Trial]:
    config = dataclasses.replace(sized(8, batch_size=256).config, **changes)
    messages: list[str] = []
    current = compilers(config, [])
    found = fit.suggestions(current, compilers, ROWS, compilers.limit, messages.append)
    assert sum("compiled in" in message for message in messages) == len(compilers.tried)
    return found


def test_suggestions_need_few_trials() -> None:
    compilers = Compilers(limit=700.0)
    found = search(compilers)
    # 8 bytes for a row: 64 rows are the most that fit; with remat all 256 do.
    assert len(compilers.tried) <= 5
    assert ["--config.microbatch=64"] in [trial.flags for trial in found]
    assert found[0].flags == [f"--config.towers.{t}.remat=block" for t in ("image", "text")]
    assert [trial.times["step"] for trial in found] == sorted(t.times["step"] or 0 for t in found)


def test_suggestions_try_slices_without_remat() -> None:
    towers: dict[str, Any] = dict(sized().config.towers)
    blocks = {n: dataclasses.replace(t, remat="block") for n, t in towers.items()}
    compilers = Compilers(limit=700.0)
    found = search(compilers, towers=blocks)
    none = [f"--config.towers.{t}.remat=none" for t in ("image", "text")]
    assert compilers.tried[1] == [*none, "--config.microbatch=32"]  # an eighth, to be safe
    sizes = [trial.config.microbatch for trial in found]
    assert sizes == [None, 64, 32]


def test_suggestions_keep_a_step_that_fits() -> None:
    messages: list[str] = []
    compilers, config = Compilers(limit=1e9), sized(8).config
    current = compilers(config, [])
    assert fit.suggestions(current, compilers, ROWS, 1e9, messages.append) == [current]
    assert messages[-1].startswith("tried no other setting")


def test_suggestions_shard_parameters_last() -> None:
    compilers = Compilers(limit=60.0)
    found = search(compilers)
    assert {"--config.mesh.data=1", "--config.mesh.fsdp=8"} < set(found[0].flags)
    assert search(Compilers(limit=5.0)) == []
