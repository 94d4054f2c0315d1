"""The papers' numbers in configs/papers are those of tests/paper_numbers.csv.

The file has one line for each number of a paper's table, as printed: paper, table, row, column and
value. So the typing can be checked against the papers in one place.
"""

import csv
import re
from collections.abc import Callable, Mapping

import pytest

from big_retrieval.sweep import spec
from tests.helpers import ROOT

Key = tuple[str, str, str, str]  # paper, table, row, column
FILE = ROOT / "tests" / "paper_numbers.csv"


@pytest.fixture(autouse=True)
def _at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def numbers() -> dict[Key, float]:
    """All numbers of the file."""
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {(x["paper"], x["table"], x["row"], x["column"]): float(x["value"]) for x in rows}
    assert len(found) == len(rows), "a key of the file is there twice"
    return found


# ---- Names of the papers for runs and metrics: (run, metric) -> row, column, unit of the config


def split(metric: str) -> tuple[str, str, str]:
    """Name of the evaluator, mode of search or weighting, and metric."""
    _, name, *mode, last = metric.split("/")
    return name, "/".join(mode), last


def vdr_beir(run: str, metric: str, table: str) -> tuple[str, str, float]:
    sets = {
        "dbpedia-entity": "dbpedia", "webis-touche2020": "touché-2020", "traffic": "avg",
    }  # fmt: skip
    name, mode, _ = split(metric)
    row = sets.get(name, name)
    if table == "6":
        column = {"bag": "VDR^alpha", "": "768"}.get(mode) or mode.split("=")[1].split("/")[0]
    elif table == "8":
        model, _, weights = run.upper().partition("-")
        column = f"{model}({'mBERT' if weights else 'BERT'})"
    else:
        names = {"relu": "VDR{} w/o elu1p", "no-bow": "VDR{} w/o bow", "vdr": "VDR{}"}
        column = names.get(run, run.upper()).format("^alpha" if mode == "bag" else "")
    return row, column, 0.01


def vdr_images(run: str, metric: str, table: str) -> tuple[str, str, float]:
    name, rest, last = split(metric)
    *modes, way = rest.split("/") if last.startswith("R@") else [*rest.split("/"), ""]
    mode = "/".join(filter(None, modes))
    if table == "figure3":
        data = {"imagenet": "ImageNet", "coco": "MS COCO TR", "flickr30k": "Flickr30k TR"}[name]
        column = data.replace("TR", "IR") if way == "text_to_image" else data
        rows = {"no-mask": "- CTS mask", "no-np": "- NP entry", "mean-pooling": "- max pooling"}
        return rows.get(run, "VDR"), column, 1.0
    data = {"imagenet": "ImageNet", "coco": "MSCOCO", "flickr30k": "Flickr30k"}[name]
    last = {"accuracy": "Top1", "top5_accuracy": "Top5"}.get(last, last)
    column = " ".join(filter(None, (data, way.replace("_", "-"), last)))
    if table == "2":
        return "VDR^np" if mode else run.upper(), column, 1.0
    kept = re.fullmatch(r"top_k=(?:all/)?(\d+)(?:/all)?", mode)
    assert not mode or (kept and mode.startswith("top_k=all") == (way != "text_to_image")), metric
    return kept[1] if kept else "512", column, 1.0


def vdr_epochs(run: str, metric: str, table: str) -> tuple[str, str, float]:
    rows = {"bert-lex": "BERT_lex epoch 0", "vdr-proj": "VDR_proj epoch 5", "vdr": "VDR epoch 5"}
    row = rows.get(run) or f"VDR epoch {run.removeprefix('vdr@')}"
    column = {"ranking/traffic/nDCG@10": "NDCG10@BEIR"}.get(metric, "MRR10@MARCO")
    return row, column, 0.01


GCL_TABLE_1 = {
    "bm25": "text-only BM25 -", "e5-published": "text-only E5 E5L*", "e5": "text-only E5 E5L",
    "roberta-published": "text-only Cross E. RobB*",
    "cross-entropy-roberta": "text-only Cross E. RobB",
    "gcl-e5": "text-only GCL(ours) E5L", "gcl-roberta": "text-only GCL(ours) RobB",
    "clip-vit_b32-published": "image-only CLIP ViTB32*",
    "clip-vit_l14-published": "image-only CLIP ViTL14*",
    "clip-vit_b32": "image-only CLIP ViTB32", "clip-vit_l14": "image-only CLIP ViTL14",
    "siglip-vit_b16": "image-only SigLip ViTB16", "gcl-vit_b16": "image-only GCL(ours) ViTB16",
    "gcl-vit_b32": "image-only GCL(ours) ViTB32", "gcl-vit_l14": "image-only GCL(ours) ViTL14",
    "clip-multi-vit_l14": "multi CLIP ViTL14", "gcl-multi-vit_b32": "multi GCL(ours) ViTB32",
    "gcl-multi-vit_l14": "multi GCL(ours) ViTL14",
}  # fmt: skip
GCL_WEIGHTS = {"inverse_sqrt": "Inverse Sqrt."}


def gcl(run: str, metric: str, table: str) -> tuple[str, str, float]:
    splits = {
        "in_domain": "In-Domain", "novel_query": "Novel Queries", "novel_document": "Novel Corpus",
        "zero_shot": "Zero-Shot",
    }  # fmt: skip
    name, mode, last = split(metric)
    column = f"{splits[name]} {last.split('@')[0]}"
    if table == "1":
        row = GCL_TABLE_1[run]
    elif table == "2":
        row = GCL_WEIGHTS.get(run, run.capitalize())
    elif table == "3":
        row = "0.5/0.0" if mode == "title" else run.removeprefix("image=")
    elif table == "4":
        encoder, batch = run.replace("vit_b32", "ViTB32").replace("vit_l14", "ViTL14").split("-")
        row = f"{encoder} {batch.replace('16384', '16324')}"
    else:
        row = run.removeprefix("decay=")
    return row, column, 1.0


def ltd(run: str, metric: str, table: str) -> tuple[str, str, float]:
    name, way, last = split(metric)
    if name == "ndcg":
        column, unit = {"rougeL_tern": "ROUGE-L", "spice": "SPICE"}[way], 1.0
    else:
        last, unit = ("R-P", 100.0) if last == "R-precision" else (last, 1.0)
        column = f"{ {'image_to_text': 'i2t', 'text_to_image': 't2i'}[way] } {last}"
    row = f"{run}.{2 if name == 'cxc' else 1}" if run.startswith("2.") else run
    return row, column, unit


def oblique(run: str, metric: str, table: str) -> tuple[str, str, float]:
    kind, name, *ways = metric.split("/")
    way = ways[0] if len(ways) > 1 else ""
    if table == "2":
        model = "Multi(32,16)" if run.startswith("multi") else "our-impl."
        model = {"openai": "openAI", "open_clip": "openCLIP"}.get(run.split("-")[-1], model)
        row = f"ViT-{'L/14' if 'l14' in run else 'B/16'} CLIP[{model}]"
        sets = {"imagenet": "IN", "imagenet_v2": "INV2", "imagenet_a": "IN-A", "imagenet_r": "IN-R"}
        data = {"coco": "MSCOCO", "flickr30k": "Flickr30K"}.get(name)
        last = {"image_to_text": "I2T R@1", "text_to_image": "T2I R@1", "": "Mean R@1/5/10"}[way]
        return row, f"{data} {last}" if data else sets[name], 1.0
    columns = {"zeroshot": "Zero-Shot Cls. Acc.", "linear_probe": "Linear Probe Cls. Acc."}
    column = columns.get(kind) or {"image_to_text": "I2T R@1", "text_to_image": "T2I R@1"}[way]
    if table == "3":
        scheme, _, topology = run.rpartition(",")
        blocks = {"start=14.3": "first", "start=202": "second", "start=1": "third"}
        names = {"sphere": "Sphere", "euclidean": "Euc", "oblique": "Ob(64, 8)"}
        row = f"{blocks.get(scheme, 'fourth')} temperature "
        return row + names.get(topology, "Ob(64, 8) geodesic"), column, 1.0
    structure, *sizes = run.split("-")
    row = f"{structure.capitalize()}({', '.join(sizes)})" if sizes else "Sphere(512)"
    return row, column, 1.0


Names = Callable[[str, str, str], tuple[str, str, float]]
VDR = {
    "1": vdr_beir, "2": vdr_images, "5": vdr_epochs, "6": vdr_beir, "7": vdr_images, "8": vdr_beir,
    "9": vdr_beir, "figure3": vdr_images,
}  # fmt: skip
# Paper, table -> sweep and names
TABLES: Mapping[tuple[str, str], tuple[list[str], Names]] = {
    **{("VDR", table): ([f"vdr.py:table={table}"], names) for table, names in VDR.items()},
    **{("GCL", table): ([f"gcl.py:table={table}"], gcl) for table in "1234A"},
    **{
        ("LTD", table): ([f"ltd.py:table={table},name={x}" for x in ("coco", "flickr30k")], ltd)
        for table in "123"
    },
    ("Oblique", "2"): (["oblique_large.py"], oblique),
    ("Oblique", "3"): (["oblique_temperatures.py"], oblique),
    ("Oblique", "4"): (["oblique_structures.py"], oblique),
}
# What no sweep has: other authors' models and averages of them, MS MARCO in an unnamed metric, and
# what a row has twice (in domain 0.5/0.0 is 0.5)
OTHERS = (
    ("VDR", "Table 1", r".*", r"ANCE|UnifieR|Contriever|SimLM|MASTER|RetroMAE|LexMAE|E5 base"),
    ("VDR", "Table 1", r"Avg. \(w/o NQ\)", r".*"),
    ("VDR", "Table 2", r"CLIP|SLIP|FILIP|ProtoCLIP|DeCLIP", r".*"),
    ("VDR", "Table 6", r"MS MARCO", r".*"),
    ("GCL", "Table 3", r"0\.5/0\.0", r"In-Domain .*"),
)  # fmt: skip


def plain(text: str) -> str:
    """A row's or column's name in one spelling: DBPedia, DBpedia; Avg., average."""
    return text.lower().removesuffix(".").replace("average", "avg")


@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_numbers_of_a_table(paper: str, table: str, numbers: dict[Key, float]) -> None:
    sweeps, names = TABLES[paper, table]
    title = "Figure 3" if table == "figure3" else f"Table {table}"
    printed = {(plain(k[2]), k[3]): (k, x) for k, x in numbers.items() if k[:2] == (paper, title)}
    left = {key for key, _ in printed.values()}
    for sweep in sweeps:
        for run, row in spec.load(f"configs/papers/{sweep}").paper.items():
            for metric, value in row.items():
                name, column, unit = names(run, metric, table)
                key, number = printed[plain(name), column]
                assert value == pytest.approx(number * unit, abs=1e-9), (run, metric, key)
                left.discard(key)
    others = [x for x in OTHERS if x[:2] == (paper, title)]
    known = {
        key
        for key in left
        for _, _, row, column in others
        if re.fullmatch(row, key[2]) and re.fullmatch(column, key[3])
    }
    assert left == known, "numbers of the paper that no sweep has"


def test_every_paper_table_is_compared(numbers: dict[Key, float]) -> None:
    tables = {(paper, "Figure 3" if t == "figure3" else f"Table {t}") for paper, t in TABLES}
    assert {key[:2] for key in numbers} == tables
    assert len(numbers) == 1476
