"""Evaluators of papers on image-text models.

Zero-shot retrieval on COCO's 5,000 and Flickr30k's 1,000 test images (Karpathy's splits), zero-shot
classification on ImageNet-1K, V2, A and R, and a linear probe on ImageNet-1K. The data folder
contains a folder for each data set, as `big-retrieval data get NAME` explains, and prompts.json
with the names, ids and prompts of ImageNet's classes (docs/DATA.md).
"""

from big_retrieval import config as configs
from big_retrieval.config import ClassFolders, Karpathy, Tfds
from big_retrieval.config.evals import Evaluator
from big_retrieval.config.sources import Source

# Name of the evaluator -> folder with plain images; data set and split of TensorFlow Datasets
IMAGENETS = {
    "imagenet": ("imagenet/val", "imagenet2012:5.1.0", "validation"),
    "imagenet_v2": ("imagenet-v2", "imagenet_v2/matched-frequency", "test"),
    "imagenet_a": ("imagenet-a", "imagenet_a", "test"),
    "imagenet_r": ("imagenet-r", "imagenet_r", "test"),
}
TRAIN = ("imagenet/train", "imagenet2012:5.1.0", "train")
FORMS = ("tfds", "folders", "none")


def image_benchmarks(
    folder: str = "data", form: str = "tfds", probe: bool = True
) -> dict[str, Evaluator]:
    """Returns an evaluator for each data set, with metrics such as `zeroshot/imagenet_a/...`.

    ImageNet-A and R are scored among their 200 classes.

    Args:
      folder: contains a folder for each data set.
      form: source of ImageNets: "tfds" (prepared by TensorFlow Datasets) or "folders".
      probe: True adds a linear probe at the end of a run.
    """

    def images(path: str, name: str, split: str) -> Source:
        how = f"see `big-retrieval data get {path.split('/')[0]}`"
        if form == "folders":
            return ClassFolders(path=f"{folder}/{path}", how_to_get=how)
        return Tfds(name=name, split=split, how_to_get=how)

    evaluators: dict[str, Evaluator] = {}
    for name in ("coco", "flickr30k"):
        path = f"{folder}/{name}/dataset_{name}.json"
        how = f"see `big-retrieval data get {name}`"
        evaluators[name] = configs.Retrieval(data=Karpathy(path=path, split="test", how_to_get=how))
    for name, where in IMAGENETS.items():
        evaluators[name] = configs.ZeroShot(
            data=images(*where),
            label="label",
            file=f"{folder}/prompts.json#imagenet",
            present=name in ("imagenet_a", "imagenet_r"),
        )
    if probe:
        test = images(*IMAGENETS["imagenet"])
        train = images(*TRAIN)
        evaluators["imagenet_probe"] = configs.LinearProbe(data=test, train=train, label="label")
    return evaluators
