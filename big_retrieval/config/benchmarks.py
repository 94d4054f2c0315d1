"""Evaluators of published benchmarks, as groups.

Texts: the twelve data sets of BEIR in VDR's Table 1, and MS MARCO ("BEIR: A Heterogeneous Benchmark
for Zero-shot Evaluation of Information Retrieval Models"). Images and texts: zero-shot retrieval on
COCO's 5,000 and Flickr30k's 1,000 test images (Karpathy's splits), zero-shot classification on
ImageNet-1K, V2, A and R, and a linear probe on ImageNet-1K.
"""

import dataclasses
from collections.abc import Sequence

from big_retrieval import config as configs
from big_retrieval.config import Evaluator, Source
from big_retrieval.errors import UserError

# BEIR's folder -> name in papers
ZERO_SHOT = {
    "arguana": "ArguAna", "climate-fever": "Climate-FEVER", "dbpedia-entity": "DBPedia",
    "fever": "FEVER", "fiqa": "FiQA", "hotpotqa": "HotpotQA", "nfcorpus": "NFCorpus", "nq": "NQ",
    "scidocs": "SCIDOCS", "scifact": "SciFact", "trec-covid": "TREC-COVID",
    "webis-touche2020": "Touché-2020",
}  # fmt: skip
TRAINED_ON = "msmarco"  # not zero-shot, so not part of the average; its queries are from dev
NAMES = (TRAINED_ON, *ZERO_SHOT)
METRICS = ("nDCG@10", "MRR@10", "R@100")
# Name of the evaluator -> folder with plain images; data set and split of TensorFlow Datasets
IMAGENETS = {
    "imagenet": ("imagenet/val", "imagenet2012:5.1.0", "validation"),
    "imagenet_v2": ("imagenet-v2", "imagenet_v2/matched-frequency", "test"),
    "imagenet_a": ("imagenet-a", "imagenet_a", "test"),
    "imagenet_r": ("imagenet-r", "imagenet_r", "test"),
}
TRAIN = ("imagenet/train", "imagenet2012:5.1.0", "train")
FORMS = ("tfds", "folders", "none")


def beir_evaluators(
    folder: str,
    sets: Sequence[str] = (),
    *,
    modes: Sequence[str] = (),
    columns: "configs.Beir | None" = None,
) -> dict[str, Evaluator]:
    """Returns an evaluator for each of BEIR's data sets, with metrics such as `ranking/nq/R@100`.

    The twelve zero-shot sets have the same `traffic`, so that `ranking/traffic/nDCG@10` is the
    average that papers report.

    Args:
      folder: contains a folder for each data set, such as arguana with corpus.jsonl, queries.jsonl
        and qrels/test.tsv (msmarco: qrels/dev.tsv).
      sets: names of `NAMES`; empty for all.
      modes: further search modes of a lexical model.
      columns: source with other columns than the default.
    """
    evaluators = {}
    for name in sets or NAMES:
        if name not in NAMES:
            raise UserError(f"{name!r} is not a BEIR data set; known: {', '.join(NAMES)}.")
        advice = f"see `big-retrieval data get beir/{name}`, or evaluate other data sets only"
        split = "dev" if name == TRAINED_ON else "test"
        source = dataclasses.replace(
            columns or configs.Beir(), path=f"{folder}/{name}", split=split, how_to_get=advice
        )
        evaluators[name] = configs.Ranking(
            data=source, metrics=METRICS, modes=tuple(modes), traffic=float(name in ZERO_SHOT)
        )
    return evaluators


def image_evaluators(folder: str, form: str) -> dict[str, Evaluator]:
    """Returns an evaluator for each data set, with metrics such as `zeroshot/imagenet_a/...`.

    ImageNet-A and R are scored among their 200 classes. The linear probe runs at the end.

    Args:
      folder: contains a folder for each data set, as `big-retrieval data get NAME` explains, and
        prompts.json with the names, ids and prompts of ImageNet's classes (docs/DATA.md).
      form: source of ImageNets: "tfds" (prepared by TensorFlow Datasets) or "folders".
    """

    def images(path: str, name: str, split: str) -> Source:
        advice = f"see `big-retrieval data get {path.split('/')[0]}`"
        if form == "folders":
            return configs.ClassFolders(path=f"{folder}/{path}", how_to_get=advice)
        return configs.Tfds(name=name, split=split, how_to_get=advice)

    evaluators: dict[str, Evaluator] = {}
    for name in ("coco", "flickr30k"):
        path = f"{folder}/{name}/dataset_{name}.json"
        advice = f"see `big-retrieval data get {name}`"
        evaluators[name] = configs.Retrieval(
            data=configs.Karpathy(path=path, split="test", how_to_get=advice)
        )
    for name, where in IMAGENETS.items():
        evaluators[name] = configs.ZeroShot(
            data=images(*where),
            label="label",
            file=f"{folder}/prompts.json#imagenet",
            present=name in ("imagenet_a", "imagenet_r"),
        )
    test, train = images(*IMAGENETS["imagenet"]), images(*TRAIN)
    evaluators["imagenet_probe"] = configs.LinearProbe(data=test, train=train, label="label")
    return evaluators
