"""A plan as text."""

import textwrap
from typing import Any

from big_retrieval.runtime.chips import gib

JAX_SHARE = 0.75  # of a GPU's memory that jax takes by default
_MEANING = {  # part of `per_device_bytes` -> explanation
    "parameters": "weights of the model",
    "optimizer": "moments, counters, averages of weights",
    "batch": "texts and images of one step",
    "padding": "of the arrays above, which the device stores in whole tiles",
    "temporaries": "activations, gradients, gathered parameters, scores",
    "output": "results that do not overwrite the old state",
    "total": "",
}


def text(plan: dict[str, Any]) -> str:
    """Returns the tables that --plan prints, for the content of plan.json."""
    blocks = (
        _head(plan), _memory(plan), _arrays(plan), _costs(plan), _verdict(plan), _suggested(plan)
    )  # fmt: skip
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _columns(rows: list[tuple[str, str, str]]) -> list[str]:
    names, sizes = (max(len(row[i]) for row in rows) for i in range(2))
    return [f"  {a:<{names}}  {b:>{sizes}}  {c}".rstrip() for a, b, c in rows]


def _head(plan: dict[str, Any]) -> list[str]:
    axes = ", ".join(f"{name} {size}" for name, size in plan["mesh"].items())
    sliced = f", {plan['microbatch']:,} encoded at a time" if plan["microbatch"] else ""
    vocabulary, compiler = plan["vocabulary"], plan["compiler"]
    lines = [
        f"plan for {plan['topology']} (mesh {axes})",
        f"  batch {plan['batch_size']:,}{sliced}; towers in {plan['dtype']}",
        f"  {plan['parameter_count']:,} parameters",
        f"  vocabulary {vocabulary['size']:,}, {vocabulary['source']}",
    ]
    if compiler is None:
        reason = textwrap.wrap(f"not compiled: {plan['not_compiled']}", 96, break_on_hyphens=False)
        return [*lines, *(f"  {line}" for line in reason)]
    return [
        *lines,
        f"  compiled for {compiler['device']} in {compiler['seconds']:.0f} s; the figures are the "
        "compiler's, nothing was measured",
    ]


def _memory(plan: dict[str, Any]) -> list[str]:
    sizes = plan["per_device_bytes"]
    large = [name for name in _MEANING if (sizes[name] or 0) >= 2**20 / 100]
    rows = [(name, gib(sizes[name]), _MEANING[name]) for name in large]
    return ["memory of one device (HBM, its main memory)", *_columns(rows)]


def _arrays(plan: dict[str, Any]) -> list[str]:
    arrays = (plan["compiler"] or {}).get("largest_arrays") or []
    rows = [(a["type"], _stored(a), _short(a["origin"])) for a in arrays]
    title = "largest arrays of a step (they need not exist at the same time)"
    return [title, *_columns(rows)] if rows else []


def _stored(array: dict[str, Any]) -> str:
    padded, size = array["padded_bytes"], array["bytes"]
    return gib(size) if padded == size else f"{gib(size)} takes {gib(padded)}"


def _short(origin: str) -> str:
    return origin if len(origin) <= 40 else f"...{origin[-37:]}"


def _costs(plan: dict[str, Any]) -> list[str]:
    parts, compiler = plan["flops_by_part"], plan["compiler"] or {}
    split = ", ".join(f"{name} {_tera(size)}" for name, size in parts.items() if size)
    return [
        "one step",
        f"  operations: {_tera(plan['flops_per_step'])} TFLOP on all devices ({split})",
        *_traffic(compiler),
        *(_cycles(compiler) if compiler.get("cycles") is not None else []),
        *_time(plan["expected"]),
    ]


def _tera(operations: int) -> str:
    """Returns operations in units of 10**12, with three digits or more."""
    size = operations / 1e12
    return f"{size:,.0f}" if size >= 1000 else f"{size:.3g}"


def _time(expected: dict[str, Any]) -> list[str]:
    if expected["step_seconds"] is not None:
        return [
            f"  time: about {expected['step_seconds']:.3g} s, "
            f"{expected['pairs_per_second']:,.0f} pairs/s; {expected['compute_seconds']:.3g} s of "
            f"cycles, {expected['exposed_wire_seconds']:.2g} s of waiting for traffic",
            f"  MFU {expected['mfu']:.0%} ({expected['compute_mfu']:.0%} without traffic): share "
            "of the chips' peak that the towers use",
        ]
    if expected["bound_seconds"] is not None:
        return [
            f"  time: not estimated; at least {expected['bound_seconds']:.3g} s, at the data "
            "sheet's peak speed, which no step reaches"
        ]
    return []


def _cycles(compiler: dict[str, Any]) -> list[str]:
    cycles, parts = compiler["cycles"], list(compiler["cycles_by_part"].items())[:6]
    lines = [
        "  cycles of one chip:",
        f"    {cycles:>15,}  the compiler's estimate, most for",
        *(f"    {share / cycles:>15.1%}    {part}" for part, share in parts),
    ]
    calls, kernels = f"{compiler['kernel_calls']:,} calls of kernels", compiler["kernel_cycles"]
    if kernels:
        lines.append(f"    {kernels:>15,}  in {calls}, counted from their instructions")
    elif compiler["kernel_calls"]:
        lines.append(f"    {'not counted':>15}  {calls}: the time below is too short")
    if compiler["unestimated_cycles"]:
        lines.append(
            f"    {compiler['unestimated_cycles']:>15,}  by rules of this project, as the compiler "
            "gives no estimate, most for"
        )
        lines += [
            f"    {row['cycles']:>15,}    {row['kind']} of {row['type']} x {row['calls']:,}"
            for row in compiler["unestimated"]
        ]
    return lines


def _traffic(compiler: dict[str, Any]) -> list[str]:
    wire = compiler.get("wire_bytes_by_collective")
    if not wire:
        return []
    total, exposed = compiler["wire_bytes"], compiler["exposed_wire_bytes"]
    lines = [
        f"  traffic: each device receives {gib(total)}, {gib(total - exposed)} of it while it "
        "computes",
        *(f"    {gib(size):>15}  {collective}" for collective, size in wire.items()),
    ]
    if compiler["loops_of_unknown_length"]:
        lines.append(
            f"    {compiler['loops_of_unknown_length']} loops of unknown length count once: the "
            "figures are too low"
        )
    return lines


def _verdict(plan: dict[str, Any]) -> list[str]:
    total, usable = plan["per_device_bytes"]["total"], plan["usable_bytes"]
    if total is None:
        return []
    if usable is None:
        return ["fits: not known, the table of chips does not have this device's memory"]
    limit = f"{gib(usable)} usable of {gib(plan['device_memory_bytes'])}"
    if not plan["fits"]:
        return [f"does not fit: {gib(total)}, {limit}"]
    lines = [f"fits: {gib(total)} of {limit}"]
    if total / plan["device_memory_bytes"] > JAX_SHARE and plan["platform"] == "gpu":
        lines.append(f"jax takes {JAX_SHARE:.0%} unless XLA_PYTHON_CLIENT_MEM_FRACTION=0.92 is set")
    return lines


def _suggested(plan: dict[str, Any]) -> list[str]:
    trials = plan["suggestions"]
    if not trials:
        settings = "microbatch, remat, mesh.fsdp and exchange=ring"
        does_not_fit = f"no setting of {settings} made it fit: use more devices"
        return [does_not_fit] if plan["fits"] is False else []
    order = "least operations" if trials[0]["step_seconds"] is None else "fastest"
    lines = [f"settings that were compiled and fit, {order} first"]
    for trial in trials:
        speed = f"{_tera(trial['flops_per_step'])} TFLOP"
        if trial["step_seconds"] is not None:
            speed = f"{trial['step_seconds']:.3g} s, MFU {trial['mfu']:.0%}"
        lines.append(
            f"  {gib(trial['total_bytes'])}, {speed}: "
            f"{' '.join(trial['flags']) or 'the config as it is'}"
        )
    return lines
