"""A plan as text."""

from typing import Any

from big_retrieval.plan.memory import PARTS
from big_retrieval.runtime.chips import gib

JAX_SHARE = 0.75  # of a GPU's memory that jax takes by default


def text(plan: dict[str, Any]) -> str:
    """The table that --plan prints.

    Args:
      plan: the content of plan.json.
    """
    return "\n".join((*_head(plan), "", *_memory(plan), "", *_costs(plan), "", *_verdict(plan)))


def _columns(rows: list[tuple[str, str, str]]) -> list[str]:
    names, sizes = (max(len(row[i]) for row in rows) for i in range(2))
    return [f"  {a:<{names}}  {b:>{sizes}}  {c}".rstrip() for a, b, c in rows]


def _head(plan: dict[str, Any]) -> list[str]:
    axes = ", ".join(f"{name} {size}" for name, size in plan["mesh"].items())
    sliced = f", {plan['microbatch']:,} encoded at a time" if plan["microbatch"] else ""
    words = plan["vocabulary"]
    return [
        f"plan for {plan['topology']} (mesh {axes})",
        f"  batch {plan['batch_size']:,}{sliced}; towers in {plan['dtype']}; "
        f"loss exchange {plan['exchange']}",
        f"  {plan['parameter_count']:,} parameters",
        f"  vocabulary {words['size']:,}, {words['source']}",
    ]


def _memory(plan: dict[str, Any]) -> list[str]:
    sizes, sources = plan["per_device_bytes"], plan["sources"]
    rows = [(name, gib(sizes[name]), sources.get(name, "")) for name in (*PARTS, "total")]
    lines = ["memory per device", *_columns(rows)]
    found = plan["compiler"]
    if found is not None and plan["sources"]["activations"] == "formula":
        lines.append(
            f"  (compiler, {found['platform']}: {gib(found['argument_bytes'])} arguments, "
            f"{gib(found['temp_bytes'])} temporary; CPUs widen bfloat16)"
        )
    elif found is not None:
        lines.append(f"  (by formulas alone: {gib(plan['formula_bytes']['total'])})")
    return lines


def _costs(plan: dict[str, Any]) -> list[str]:
    parts = plan["flops_by_part"]
    split = ", ".join(f"{name} {size / 1e12:,.3g}" for name, size in parts.items())
    lines = [
        "one step",
        f"  {plan['flops_per_step'] / 1e12:,.4g} TFLOP over all devices ({split})",
        f"  {gib(plan['wire_bytes'])} received per device, {plan['wire_bytes_source']}"
        f"{_split(plan['wire_bytes_by_collective'])}",
    ]
    expected = plan["expected"]
    if expected["step_seconds"] is None:
        return [*lines, "  time and MFU: not known, the table of chips has no peak for this device"]
    return [
        *lines,
        f"  about {expected['step_seconds']:.3g} s, {expected['pairs_per_second']:,.0f} pairs/s, "
        f"MFU {expected['mfu']:.0%}; {expected['exposed_wire_seconds']:.2g} s of this are spent "
        "waiting for the wire",
        f"  (arithmetic on the data sheet at {expected['achievable_share']:.0%} of the peak, not a "
        "measurement)",
    ]


def _split(wire: dict[str, float]) -> str:
    rows = ", ".join(f"{kind} {gib(size)}" for kind, size in wire.items())
    return f"\n    {rows}" if rows else ""


def _verdict(plan: dict[str, Any]) -> list[str]:
    total, usable = plan["per_device_bytes"]["total"], plan["usable_bytes"]
    if usable is None:
        return ["fits: not known, the table of chips does not have this device's memory"]
    limit = f"{gib(usable)} usable of {gib(plan['device_memory_bytes'])}"
    if plan["fits"]:
        lines = [f"fits: {gib(total)} of {limit}"]
        share = total / plan["device_memory_bytes"]
        if share > JAX_SHARE and plan["platform"] == "gpu":
            lines.append(
                f"jax takes {JAX_SHARE:.0%} unless XLA_PYTHON_CLIENT_MEM_FRACTION=0.92 is set"
            )
        return lines
    lines = [f"does not fit: {gib(total)}, {limit}"]
    change = plan["smallest_change"]
    if change is None:
        return [*lines, "no micro-batch, remat, fsdp or ring makes it fit; use more devices"]
    return [*lines, f"would fit with {gib(change['total'])}:", f"  {' '.join(change['flags'])}"]
