"""Tables 1 to 3 and Figure 3 of "Reducing Predictive Feature Suppression in Resource-Constrained
Contrastive Image-Caption Retrieval" (docs/LTD.md); a run's name is the row of its table.

    big-retrieval sweep --sweep=configs/sweeps/ltd.py:table=1,name=coco --workdir=runs/ltd
    big-retrieval sweep --sweep=configs/sweeps/ltd.py:table=2,runlocal --workdir=runs/try
"""

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep

# Table, data -> rows: number, file of the config, arguments
CONSTRAINT, DUAL, NONE = "mode=constraint,eta=", "mode=dual", "mode=contrastive"
ITD, TRIPLET = "decoder=itd,softmax=time,", "loss=triplet,"
ROWS = {
    ("1", "flickr30k"): (
        ("1.1", "ltd_f30k", NONE), ("1.2", "ltd_f30k", f"{ITD}{DUAL}"),
        ("1.3", "ltd_f30k", f"{ITD}{CONSTRAINT}6"), ("1.4", "ltd_f30k", DUAL),
        ("1.5", "ltd_f30k", f"{CONSTRAINT}0.2"),
    ),
    ("1", "coco"): (
        ("2.1", "ltd_coco", NONE), ("2.2", "ltd_coco", f"{ITD}{DUAL}"),
        ("2.3", "ltd_coco", f"{ITD}{CONSTRAINT}4"), ("2.4", "ltd_coco", DUAL),
        ("2.5", "ltd_coco", f"{CONSTRAINT}0.15"),
    ),
    ("2", "flickr30k"): (
        ("3.1.1", "ltd_f30k", f"{TRIPLET}{NONE}"), ("3.1.2", "ltd_f30k", f"{TRIPLET}{DUAL}"),
        ("3.1.3", "ltd_f30k", f"{TRIPLET}{CONSTRAINT}0.2"),
    ),
    ("2", "coco"): (
        ("3.2.1", "ltd_coco", f"{TRIPLET}{NONE}"), ("3.2.2", "ltd_coco", f"{TRIPLET}{DUAL}"),
        ("3.2.3", "ltd_coco", f"{TRIPLET}{CONSTRAINT}0.2"),
    ),
    ("3", "flickr30k"): (
        ("5.1.1", "ltd_vsrn", f"name=flickr30k,{NONE}"),
        ("5.1.2", "ltd_vsrn", f"name=flickr30k,{DUAL}"),
        ("5.1.3", "ltd_vsrn", f"name=flickr30k,{CONSTRAINT}0.25"),
    ),
    ("3", "coco"): (
        ("5.2.1", "ltd_vsrn", NONE), ("5.2.2", "ltd_vsrn", DUAL),
        ("5.2.3", "ltd_vsrn", f"{CONSTRAINT}0.15"),
        ("5.3.1", "ltd_tern", NONE), ("5.3.2", "ltd_tern", DUAL),
        ("5.3.3", "ltd_tern", f"{CONSTRAINT}0.2"),
    ),
    ("figure3", "coco"): tuple(
        (f"eta={eta}", "ltd_coco", f"{CONSTRAINT}{eta}")
        for eta in ("0.05", "0.1", "0.15", "0.2", "0.25")
    ),
}  # fmt: skip


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: table (1, 2, 3, figure3); name (coco, flickr30k); runlocal; seeds (1)."""
    args = recipe.parse_arg(arg, table="1", name="coco", seeds=1)
    tables = tuple(sorted({table for table, name in ROWS if name == args.name}))
    recipe.one_of("name", args.name, tuple(sorted({name for _, name in ROWS})))
    recipe.one_of("table", args.table, tables)
    small = ",runlocal" if args.runlocal else ""
    runs = [
        Entry(row, f"configs/{file}.py:{given}{small}")
        for row, file, given in ROWS[args.table, args.name]
    ]
    metrics = (
        "retrieval/test/*/R@*", "retrieval/test/*/R-precision", "retrieval/test/rsum",
        "*/cxc/*/R@*", "*/cxc/*/R-precision", "*/ndcg/*/nDCG@25",
    )  # fmt: skip
    return Sweep(runs=runs, seeds=range(args.seeds), metrics=metrics)
