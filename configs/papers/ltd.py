"""Tables 1 to 3 and Figure 3 of "Reducing Predictive Feature Suppression in Resource-Constrained
Contrastive Image-Caption Retrieval" (docs/LTD.md, docs/PAPERS.md); a run's name is the row of its
table.

    big-retrieval sweep --sweep=configs/papers/ltd.py:table=1,name=coco --workdir=runs/ltd
    big-retrieval sweep --sweep=configs/papers/ltd.py:table=2,runlocal --workdir=runs/try
"""

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep, published

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
    ("figure3", "coco"): (
        ("contrastive", "ltd_coco", NONE), ("dual", "ltd_coco", DUAL),
        *(
            (f"eta={eta}", "ltd_coco", f"{CONSTRAINT}{eta}")
            for eta in ("0.05", "0.1", "0.15", "0.2", "0.25")
        ),
    ),
}  # fmt: skip

RECALLS = tuple(f"{way}/R@{k}" for way in ("image_to_text", "text_to_image") for k in (1, 5, 10))
TEST = tuple(f"retrieval/test/{each}" for each in RECALLS)
# The paper's ROUGE-L is TERN's published relevance. With rouge=computed, ours is the column rougeL.
NDCG = ("caption_ndcg/ndcg/rougeL_tern/nDCG@25", "caption_ndcg/ndcg/spice/nDCG@25")
PRECISION = "retrieval/test/image_to_text/R-precision"
CXC = tuple(f"crisscrossed/cxc/{each}" for each in RECALLS)
CXC_PRECISIONS = tuple(
    f"crisscrossed/cxc/{way}/R-precision" for way in ("image_to_text", "text_to_image")
)
# The paper's tables, R-precision in percent as ours. Of COCO's Table 1 a row is the paper's two:
# the images' own captions, and then Crisscrossed Captions.
PAPER = {
    **published((*TEST, PRECISION), {
        "1.1": "47.4 75.9 84.8 33.9 65.2 76.6 34",
        "1.2": "45.7 74.0 84.4 33.7 65.1 75.8 33",
        "1.3": "36.6 66.8 76.5 27.8 59.1 71.0 28",
        "1.4": "46.1 75.3 84.1 34.0 65.9 77.4 34",
        "1.5": "49.6 78.7 86.4 36.7 68.4 79.3 37",
    }),
    **published((*TEST, PRECISION, *NDCG, *CXC, *CXC_PRECISIONS), {
        "2.1": "33.7 64.4 76.6 24.2 53.5 67.0 24 0.6487 0.5729 "
               "36.1 68.1 80.2 26.7 57.6 71.0 22 23",
        "2.2": "32.7 64.4 76.3 24.2 53.8 67.6 24 0.6496 0.5733 "
               "35.0 68.0 79.7 26.6 58.0 71.6 22 23",
        "2.3": "28.4 59.2 72.2 22.0 50.4 64.5 22 0.6424 0.5638 "
               "31.0 62.9 75.8 24.6 54.8 68.9 20 21",
        "2.4": "34.2 64.7 76.6 25.0 54.3 67.9 25 0.6510 0.5756 "
               "36.6 68.1 79.9 27.6 58.8 72.0 23 24",
        "2.5": "36.0 66.5 78.1 26.2 56.2 69.4 26 0.6531 0.5786 "
               "38.4 70.4 81.5 28.9 60.4 73.3 24 25",
    }),
    **published(TEST, {
        "3.1.1": "12.8 33.2 45.4 11.1 32.6 46.6",
        "3.1.2": "17.1 42.7 56.4 13.1 40.5 55.7",
        "3.1.3": "54.7 81.5 88.3 40.8 71.3 80.6",
        "3.2.1": "37.1 67.1 78.2 27.8 56.6 69.3",
        "3.2.2": "37.4 67.8 79.1 28.2 57.2 70.5",
        "3.2.3": "39.1 69.3 80.6 29.6 59.4 72.2",
        "5.1.1": "60.3 85.6 90.8 44.9 74.0 83.3",
        "5.1.2": "59.6 86.6 91.6 44.3 74.7 83.5",
        "5.1.3": "61.9 86.8 92.1 45.3 76.4 84.4",
    }),
    **published((*TEST, *NDCG), {
        "5.2.1": "47.0 76.9 87.0 34.5 65.7 78.1 0.6779 0.6080",
        "5.2.2": "45.9 77.8 87.6 34.6 66.2 78.3 0.6791 0.6088",
        "5.2.3": "47.6 79.0 87.8 35.0 66.7 78.9 0.6797 0.6112",
        "5.3.1": "41.2 72.6 83.6 31.0 61.9 74.7 0.6648 0.5926",
        "5.3.2": "42.3 74.3 84.4 31.4 62.7 75.4 0.6684 0.5993",
        "5.3.3": "44.1 74.8 85.7 33.6 64.6 76.9 0.6727 0.6059",
    }),
}  # fmt: skip


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: table (1, 2, 3, figure3); name (coco, flickr30k); rouge, of COCO (as of
    configs/ltd_coco.py); runlocal; seeds (1)."""
    args = recipe.parse_arg(arg, table="1", name="coco", rouge="", seeds=1)
    tables = tuple(sorted({table for table, name in ROWS if name == args.name}))
    recipe.one_of("name", args.name, tuple(sorted({name for _, name in ROWS})))
    recipe.one_of("table", args.table, tables)
    small = ",runlocal" if args.runlocal else ""
    small += f",rouge={args.rouge}" if args.rouge and args.name == "coco" else ""
    runs = [
        Entry(row, f"configs/{file}.py:{given}{small}")
        for row, file, given in ROWS[args.table, args.name]
    ]
    metrics = (
        "retrieval/test/*/R@*", "retrieval/test/*/R-precision", "retrieval/test/rsum",
        "*/cxc/*/R@*", "*/cxc/*/R-precision", "*/ndcg/*/nDCG@25",
    )  # fmt: skip
    paper = {} if args.runlocal else {each.name: PAPER.get(each.name, {}) for each in runs}
    return Sweep(runs=runs, seeds=range(args.seeds), metrics=metrics, paper=paper)
