"""Tables 1, 2 and 5 to 9 and Figure 3 of "Retrieval-based Disentangled Representation Learning with
Natural Language Supervision" (docs/VDR.md, docs/PAPERS.md); a run's name is its model.

    big-retrieval sweep --sweep=configs/papers/vdr.py:table=1 --workdir=runs/vdr1
    big-retrieval sweep --sweep=configs/papers/vdr.py:table=figure3,runlocal --workdir=runs/try
"""

from collections.abc import Mapping, Sequence
from typing import Any

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep, published

DPR, T2T, CLIP, CM = "dpr_msmarco", "vdr_t2t_msmarco", "clip_bert_yfcc15m", "vdr_cm_yfcc15m"
SETS = (  # of BEIR, in the paper's order
    "arguana", "climate-fever", "dbpedia-entity", "fever", "fiqa", "hotpotqa", "nfcorpus", "nq",
    "scidocs", "scifact", "trec-covid", "webis-touche2020",
)  # fmt: skip
KS = (0, 32, 64, 128, 256)  # of Tables 6 and 7, which lacks 0; the rest is as encoded
SHORT = {"total_epochs": 5, "optimizer.lr": 5e-4}  # of Figure 3
# An image that is the query has its gate narrowed, which is the document side of our evaluators.
NARROW = {
    f"evals.{name}.modes": tuple(f"top_k={x}" for k in KS[1:] for x in (f"{k}/all", f"all/{k}"))
    for name in ("coco", "flickr30k", "imagenet")
}

# Table -> rows that nothing trains: name, config, flag of `big-retrieval evaluate`
EVALUATED = {"1": ("bm25", DPR, "--bm25"), "5": ("bert-lex", T2T, "--untrained")}
# Table -> rows: name, config, arguments, overrides (not of runlocal)
ROWS: Mapping[str, Sequence[tuple[str, str, str, Mapping[str, Any]]]] = {
    "1": (("dpr", DPR, "", {}), ("splade", "splade_msmarco", "", {}), ("vdr", T2T, "", {})),
    "2": (("clip-bert", CLIP, "", {}), ("vdr", CM, "", {})),
    "5": (  # a schedule of five epochs is ours: the paper may have stopped one of 20 epochs
        ("vdr", T2T, "epochs=5", {"eval_every_epochs": 1.0}),
        ("vdr-proj", T2T, "epochs=5,own=passage", {}),
    ),
    "6": (("vdr", T2T, f"modes={'+'.join(('bag', *(f'top_k={k}/all' for k in KS)))}", {}),),
    "7": (("vdr", CM, "", NARROW),),
    "8": (
        ("dpr-mbert", DPR, "encoder=mbert", {}), ("vdr-mbert", T2T, "encoder=mbert", {}),
        ("dpr", DPR, "", {}), ("vdr", T2T, "", {}),
    ),
    "9": (("vdr", T2T, "", {}), ("relu", T2T, "relu", {}), ("no-bow", T2T, "nobag", {})),
    "figure3": (
        ("vdr", CM, "", SHORT), ("no-mask", CM, "mask=none", SHORT),
        ("no-np", CM, "nobag", SHORT), ("mean-pooling", CM, "mean", SHORT),
    ),
}  # fmt: skip


def beir(mode: str = "") -> tuple[str, ...]:
    """The columns of BEIR's sets and of their average, in a mode of search or as encoded."""
    return tuple(f"ranking/{name}/{mode}nDCG@10" for name in (*SETS, "traffic"))


def recalls(name: str, image: str = "", text: str = "") -> tuple[str, ...]:
    """The columns of image-text retrieval, with the modes of images and of texts as queries."""
    ways = (f"{image}image_to_text", f"{text}text_to_image")
    return tuple(f"retrieval/{name}/{way}/R@{k}" for way in ways for k in (1, 5, 10))


def narrowed(k: int) -> tuple[str, ...]:
    """The columns of Table 7."""
    image, text = f"top_k=all/{k}/", f"top_k={k}/all/"
    classes = (f"zeroshot/imagenet/{image}accuracy", f"zeroshot/imagenet/{image}top5_accuracy")
    return (*classes, *recalls("coco", image, text), *recalls("flickr30k", image, text))


WHOLE = (
    "zeroshot/imagenet/accuracy", "zeroshot/imagenet/top5_accuracy", *recalls("coco"),
    "retrieval/coco/R-mean", *recalls("flickr30k"), "retrieval/flickr30k/R-mean",
)  # fmt: skip
ENCODED = tuple(metric for metric in WHOLE if not metric.endswith("R-mean"))
FIRSTS = (WHOLE[0], *(metric for metric in WHOLE if metric.endswith("R@1")))
# The rows of the paper's tables as it prints them: columns, rows
DENSE_BEIR = "40.8 16.2 30.4 63.8 23.7 45.2 26.1 43.2 10.9 47.4 60.1 22.1 35.8"
VDR_BEIR = "48.6 17.6 39.0 74.0 28.8 65.5 33.0 47.2 15.3 67.3 67.8 29.8 44.5"
VDR_BAG = "48.8 18.1 37.6 74.8 29.3 68.4 32.7 45.8 15.4 67.6 69.0 27.7 44.6"
PAPER: Mapping[str, Sequence[tuple[tuple[str, ...], Mapping[str, str]]]] = {
    "2": (
        (WHOLE, {
            "clip-bert": "32.4 56.1 23.9 47.8 60.3 13.6 33.8 45.1 37.4 "
                         "44.1 71.2 80.7 27.8 54.7 65.9 57.4",
            "vdr": "38.7 63.6 30.9 54.5 65.4 17.4 38.1 49.7 42.7 "
                   "51.0 79.3 86.7 32.4 60.1 70.7 63.4",
        }),
        ((*recalls("coco", "bag/", "bag/")[3:], *recalls("flickr30k", "bag/", "bag/")[3:]), {
            "vdr": "11.8 28.6 38.6 21.1 42.3 52.8",
        }),
    ),
    "7": (
        (narrowed(32), {
            "vdr": "34.8 56.7 18.9 38.9 49.3 15.8 35.7 46.8 34.9 59.2 70.3 31.7 58.0 68.5",
        }),
        (narrowed(64), {
            "vdr": "36.6 59.7 23.3 45.5 56.1 17.1 37.3 48.6 40.9 67.9 78.2 33.3 59.8 71.3",
        }),
        (narrowed(128), {
            "vdr": "38.1 62.0 27.0 49.7 61.1 17.4 38.1 49.4 44.9 73.9 83.4 33.3 60.0 71.4",
        }),
        (narrowed(256), {
            "vdr": "38.5 63.3 29.5 53.9 64.4 17.4 38.1 49.4 49.9 77.2 85.6 32.9 60.0 71.2",
        }),
        (ENCODED, {  # 512, the gate of the encoders
            "vdr": "38.7 63.6 30.9 54.5 65.4 17.4 38.1 49.7 51.0 79.3 86.7 32.4 60.1 70.7",
        }),
    ),
    "figure3": (
        (FIRSTS, {
            "vdr": "29.3 25.4 13.7 43.2 26.9", "no-mask": "25.2 21.1 11.9 37.0 22.4",
            "no-np": "26.4 24.4 14.1 42.6 26.2", "mean-pooling": "27.8 22.2 12.2 37.4 23.7",
        }),
    ),
    "1": (
        (beir(), {
            "dpr": DENSE_BEIR, "vdr": VDR_BEIR,
            "bm25": "31.5 21.3 31.3 75.3 23.6 60.3 32.5 32.9 15.8 66.5 65.6 36.7 41.1",
            "splade": "43.9 19.9 36.6 73.0 28.7 63.6 31.3 46.9 14.5 62.8 67.3 20.1 42.4",
        }),
        (beir("bag/"), {"vdr": VDR_BAG}),
    ),
    "6": (
        (beir("bag/"), {"vdr": VDR_BAG}),
        (beir("top_k=0/all/"), {
            "vdr": "48.6 17.2 35.1 73.7 28.1 64.4 32.5 44.6 14.8 67.3 66.5 29.1 43.5",
        }),
        (beir("top_k=32/all/"), {
            "vdr": "27.3 17.1 38.0 74.0 28.2 65.0 33.0 45.8 14.8 66.8 67.3 29.0 42.2",
        }),
        (beir("top_k=64/all/"), {
            "vdr": "41.7 17.6 38.6 73.9 28.8 65.5 32.9 46.4 15.0 67.2 67.8 29.4 43.7",
        }),
        (beir("top_k=128/all/"), {
            "vdr": "47.0 17.2 39.0 73.9 28.8 65.5 32.9 46.9 15.1 67.1 67.6 29.5 44.2",
        }),
        (beir("top_k=256/all/"), {
            "vdr": "47.2 17.2 38.8 73.9 28.6 65.4 32.8 47.0 15.2 67.3 67.3 29.8 44.2",
        }),
        (beir(), {"vdr": "46.5 16.9 38.9 73.9 28.4 65.0 32.5 47.2 15.3 66.6 66.2 29.4 43.9"}),
    ),
    "8": (
        (beir(), {
            "dpr-mbert": "37.2 14.6 31.3 62.7 21.6 45.6 25.2 43.2 10.7 48.2 57.3 21.9 34.9",
            "vdr-mbert": "46.7 14.7 36.4 69.7 27.5 63.1 33.3 43.8 14.3 66.7 66.7 27.7 42.6",
            "dpr": DENSE_BEIR, "vdr": VDR_BEIR,
        }),
    ),
    "9": (
        (beir(), {
            "vdr": VDR_BEIR,
            "relu": "45.5 16.5 37.6 72.2 29.0 63.8 32.4 45.5 14.5 65.6 64.8 28.8 43.0",
            "no-bow": "43.5 18.4 38.3 73.7 28.1 64.5 33.2 44.9 14.7 65.7 68.0 29.4 43.5",
        }),
        (beir("bag/"), {
            "vdr": VDR_BAG,
            "relu": "47.9 17.6 37.4 72.6 28.3 68.4 32.4 45.0 15.2 67.1 66.7 27.2 43.8",
            "no-bow": "41.4 15.5 34.4 70.7 25.3 63.2 32.3 38.8 14.0 66.0 60.7 21.4 40.3",
        }),
    ),
    "5": (
        (("ranking/traffic/nDCG@10", "ranking/msmarco/MRR@10"), {
            "bert-lex": "20.1 28.9", "vdr@1": "38.9 28.4", "vdr@2": "42.3 30.8",
            "vdr@3": "42.9 31.7", "vdr@4": "43.4 32.4", "vdr": "43.7 32.8", "vdr-proj": "0.2 0",
        }),
    ),
}  # fmt: skip


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: table (1, 2, 5, 6, 7, 8, 9, figure3); runlocal; seeds (1)."""
    args = recipe.parse_arg(arg, table="1", seeds=1)
    recipe.one_of("table", args.table, tuple(ROWS))
    runs, evaluations = [], {}
    if args.table in EVALUATED:
        name, file, flag = EVALUATED[args.table]
        small = ":runlocal" if args.runlocal else ""
        runs.append(Entry(name, f"configs/{file}.py{small}", evaluate=flag))
    if args.table == "5" and not args.runlocal:
        evaluations["vdr"] = (1, 2, 3, 4)  # after each epoch; the last one is the row of the run
    for name, file, given, changes in ROWS[args.table]:
        if args.runlocal:  # whose small gates cannot be narrowed to these numbers
            given = ",".join(["runlocal", *([given] if given and "modes=" not in given else [])])
        config = f"configs/{file}.py:{given}" if given else f"configs/{file}.py"
        runs.append(Entry(name, config, {} if args.runlocal else changes))
    paper: dict[str, dict[str, float]] = {run.name: {} for run in runs}
    paper |= {f"vdr@{number}": {} for number in evaluations.get("vdr", ())}
    images = args.table in ("2", "7", "figure3")
    for columns, rows in () if args.runlocal else PAPER[args.table]:
        # nDCG and MRR are percentages in the paper, and shares of 1 in our tables
        for name, numbers in published(columns, rows, 1.0 if images else 0.01).items():
            paper[name] |= numbers
    metrics = ("zeroshot/*accuracy", "retrieval/*/R@*", "retrieval/*/R-mean")
    metrics = metrics if images else ("ranking/*nDCG@10", "ranking/*/MRR@10")
    return Sweep(
        runs=runs, seeds=range(args.seeds), metrics=metrics, paper=paper, evaluations=evaluations
    )
