"""Published data sets: configs read small folders in the published layouts."""

import csv
import hashlib
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from big_retrieval import config as configs
from big_retrieval.data.build import make_source
from big_retrieval.data.catalogue import Entry, compare, read_catalogue
from big_retrieval.errors import UserError
from tests.data.files import encoded, write_tar
from tests.helpers import in_process


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # configs look for their data in data/


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 4)).save(path)


def text(path: Path, *lines: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (x if isinstance(x, str) else json.dumps(x) for x in lines)
    path.write_text("".join(f"{row}\n" for row in rows))


def split_file(folder: Path, name: str, **more: Any) -> list[dict[str, Any]]:
    """Writes a Karpathy split file; returns its images."""
    images = [
        {
            "filename": f"{number}.jpg", "imgid": number, "split": split, "sentids": [number],
            "sentences": [{"raw": f"caption {number}", "imgid": number, "sentid": number}],
        }
        | {key: value(split) for key, value in more.items()}
        for number, split in enumerate(("train", "restval", "val", "test"))
        if name == "coco" or split != "restval"
    ]  # fmt: skip
    text(folder / f"dataset_{name}.json", {"images": images, "dataset": name})
    return images


def coco(folder: Path) -> None:
    where = {"train": "train2014"}
    for each in split_file(folder, "coco", filepath=lambda s: where.get(s, "val2014")):
        image(folder / each["filepath"] / each["filename"])


def flickr30k(folder: Path) -> None:
    for each in split_file(folder, "flickr30k"):
        image(folder / "flickr30k-images" / each["filename"])


def tars(folder: Path) -> None:
    """Writes shards of img2dataset: images that could not be fetched have no files."""
    folder.mkdir(parents=True)
    for shard in range(2):
        members = []
        for key in (f"{shard:05d}{number:04d}" for number in (0, 2)):
            meta = {"caption": f"caption {key}", "key": key, "status": "success"}
            files = {"jpg": encoded(Image.new("RGB", (6, 4)), "JPEG")}
            files |= {"json": json.dumps(meta).encode(), "txt": meta["caption"].encode()}
            members += [(f"{key}.{ending}", data) for ending, data in files.items()]
        write_tar(folder / f"{shard:05d}.tar", members)
        text(folder / f"{shard:05d}_stats.json", {"count": 3, "successes": 2})


def marqo(folder: Path) -> None:
    for number in (1, 2):
        products = {f"p{number}{k}": f"title {k}" for k in range(3)}
        rows = {
            key: {"title": title, "image_local": f"/data/images/{key}.jpg"}
            for key, title in products.items()
        }
        (folder / "images").mkdir(parents=True, exist_ok=True)
        (folder / f"corpus_{number}.json").write_text(json.dumps(rows))
        for key in products:
            image(folder / "images" / f"{key}.jpg")
        for query in (0, 1):
            stem = f"query_{query}_product_id_{number - 1}"
            with (folder / f"{stem}.csv").open("w", newline="") as file:
                writer = csv.writer(file, quoting=csv.QUOTE_ALL)
                writer.writerow(["query", "product_id", "title", "image_local", "score_linear"])
                for place, (key, title) in enumerate(products.items()):
                    writer.writerow([f"query {query}", key, title, f"{key}.jpg", 100 - place])
            text(folder / f"{stem}_queries.json", [f"query {query}"])
            for kind in ("dev", "test"):
                text(folder / f"{stem}_gt_{kind}.json", {f"query {query}": {}})


def msmarco(folder: Path) -> None:
    text(folder / "collection.tsv", *(f"{n}\tpassage {n}" for n in range(4)))
    text(folder / "queries.train.tsv", *(f"{n}\tquery {n}" for n in range(2)))
    rows = [{"qid": n, "pos": [n], "neg": {"bm25": [2, 3], "other": [3]}} for n in range(2)]
    text(folder / "hard-negatives.jsonl", *rows)
    text(folder / TRIPLES, "0\t0\t2", "1\t1\t3", "0\t0\t3")


def nq(folder: Path) -> None:
    passage = {"title": "T", "text": "words", "score": 1000, "title_score": 1, "passage_id": "7"}
    wrong = passage | {"text": "other words", "passage_id": "8"}
    rows = [
        {
            "dataset": "nq_train_psgs_w100", "question": "who", "answers": ["one"],
            "positive_ctxs": [passage], "negative_ctxs": [wrong], "hard_negative_ctxs": [wrong],
        }
    ]  # fmt: skip
    for split in ("train", "dev"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"biencoder-nq-{split}.json").write_text(json.dumps(rows, indent=4))


def beir(folder: Path) -> None:
    text(folder / "corpus.jsonl", *({"_id": f"d{n}", "title": "", "text": "x"} for n in range(3)))
    text(folder / "queries.jsonl", {"_id": "q1", "text": "what", "metadata": {}})
    for split in ("dev", "test"):
        text(folder / "qrels" / f"{split}.tsv", "query-id\tcorpus-id\tscore", "q1\td1\t2")


def scan(folder: Path) -> None:
    for name in ("f30k_precomp", "coco_precomp"):
        for split in ("train", "dev", "test"):
            text(folder / name / f"{split}_caps.txt", *(f"caption {n}" for n in range(5)))
            np.save(folder / name / f"{split}_ims.npy", np.zeros((1, 36, 8), np.float32))


def imagenet(folder: Path) -> None:
    for split in ("train", "val"):
        for wnid in ("n01440764", "n01443537"):
            image(folder / split / wnid / f"ILSVRC2012_{split}_{wnid}.JPEG")


def imagenet_v2(folder: Path) -> None:
    for label in ("0", "1", "10"):
        image(folder / label / "0aef.jpeg")


def imagenet_variant(folder: Path) -> None:
    text(folder / "README.txt", "words")
    for wnid in ("n01498041", "n01531178"):
        image(folder / wnid / f"{wnid}_0.jpg")


def source_of(name: str, evaluator: str = "") -> configs.Source:
    """Returns the source of a config's training data, or of an evaluator."""
    name, _, arg = name.partition(":")
    config = configs.load(importlib.import_module(f"configs.{name}").get_config(arg))
    source = config.evals[evaluator].data if evaluator else config.data
    assert source is not None
    return source


PART_KEYS = {"path", "files", "lines", "records", "queries", "md5", "sidecar", "optional"}
TRIPLES = "qidpidtriples.train.full.2.tsv"
FOLDERS = "oblique_s16_yfcc15m:benchmarks=folders"
LAYOUTS: dict[str, tuple[Callable[[Path], None], list[Callable[[], configs.Source]], int]] = {
    "coco": (
        coco,
        [lambda: source_of("ltd_coco"), lambda: source_of("clip_bert_yfcc15m", "coco")],
        1,
    ),
    "flickr30k": (flickr30k, [lambda: source_of("ltd_f30k")], 1),
    "imagenet": (
        imagenet,
        [lambda: source_of(FOLDERS, "imagenet"), lambda: source_of(FOLDERS, "imagenet_probe")],
        2,
    ),
    "imagenet-v2": (imagenet_v2, [lambda: source_of(FOLDERS, "imagenet_v2")], 3),
    "imagenet-a": (imagenet_variant, [lambda: source_of(FOLDERS, "imagenet_a")], 2),
    "imagenet-r": (imagenet_variant, [lambda: source_of(FOLDERS, "imagenet_r")], 2),
    "cc3m": (tars, [lambda: configs.Tar(path="data/cc3m/*.tar")], 4),
    "yfcc15m": (
        tars,
        [lambda: source_of("clip_bert_yfcc15m"), lambda: source_of("oblique_s16_yfcc15m")],
        4,
    ),
    "marqo-gs-10m": (
        marqo,
        [lambda: source_of("gcl_gs10m"), lambda: source_of("gcl_gs10m", "zero_shot")],
        3,
    ),
    "msmarco": (
        msmarco,
        [
            lambda: source_of("dpr_msmarco"),
            lambda: source_of(f"splade_msmarco:triples={TRIPLES},systems=all"),
        ],
        2,
    ),
    "nq": (nq, [lambda: configs.Dpr(path="data/nq/biencoder-nq-train.json")], 1),
    "beir/msmarco": (beir, [lambda: source_of("dpr_msmarco", "msmarco")], 1),
    "beir/scifact": (beir, [lambda: source_of("vdr_t2t_msmarco", "scifact")], 1),
    "scan": (
        scan,
        [
            lambda: source_of("ltd_vsrn:name=flickr30k"),
            lambda: source_of("ltd_vsrn:name=flickr30k", "val"),
        ],
        1,
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_configs_read_published_folders(name: str) -> None:
    make, sources, count = LAYOUTS[name]
    entry = read_catalogue()[name]
    make(Path(entry["folder"]))
    for source in (each() for each in sources):
        records: Any = make_source(source)
        assert len(records) >= count
        for index in range(len(records)):
            record = records[index]
            assert record.get("image", True) is not None
            assert {"captions", "query", "regions", "label"} & {*record}
    for part, _, difference in compare(entry["parts"], Path(entry["folder"])):
        assert difference != "missing", part["path"]  # all parts exist, with fewer records
        assert "not finished" not in difference


def test_catalogue_entries_are_complete() -> None:
    for name, entry in read_catalogue().items():
        assert entry["folder"].split("/")[0] == "data", name
        assert all(entry[key] for key in ("size", "license", "fetch", "steps", "parts")), name
        assert all({"path"} <= part.keys() <= PART_KEYS for part in entry["parts"]), name
        for file in entry["fetch"]:
            assert re.match(r"https?://", file["address"]), name
            assert re.fullmatch(r"([0-9a-f]{32})?", file.get("md5", "")), name


MD5 = hashlib.md5(b'[{"a": 1}, {"a": 2}]').hexdigest()


@pytest.mark.parametrize(
    ("path", "keys", "contents", "difference"),
    [
        ("a.txt", {"lines": 4, "queries": 2}, "4 lines, 2 queries", ""),
        ("a.txt", {"lines": 5}, "4 lines", "4 of 5 lines"),
        ("b.json", {"records": 3}, "3 records", ""),
        ("c.json", {"records": 2}, "2 records", ""),
        ("*.json", {"files": 2}, "2 files", ""),
        ("*.json", {"files": 3}, "2 files", "2 of 3 files"),
        ("gone", {}, "", "missing"),
        ("gone", {"optional": True}, "", ""),
        ("c.json", {"md5": MD5}, "there", ""),
        ("b.json", {"md5": MD5}, "there", f"its MD5 is not {MD5}: fetch it again"),
        ("*.json", {"sidecar": ".txt"}, "2 files",
         "2 are not finished, the first one is b.json"),
    ],
)  # fmt: skip
def test_compare_finds_differences(
    tmp_path: Path, path: str, keys: Entry, contents: str, difference: str
) -> None:
    (tmp_path / "a.txt").write_text("id\tx\nq1\t1\nq1\t2\nq2\t3")
    (tmp_path / "b.json").write_text(json.dumps({"images": [1, 2, 3]}))
    (tmp_path / "c.json").write_text('[{"a": 1}, {"a": 2}]')
    ((_, *result),) = compare([{"path": path, **keys}], tmp_path)
    assert result == [contents, difference]
    with pytest.raises(UserError, match="Not a folder"):
        next(compare([{"path": "x"}], tmp_path / "gone"))


def test_get_and_check_commands(tmp_path: Path) -> None:
    listed = in_process("data", "get")
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in read_catalogue())
    told = in_process("data", "get", "coco").stdout
    for word in ("train2014.zip", "data/coco", "CC BY 4.0", "20 GB", "data check coco"):
        assert word in told
    wrong = in_process("data", "get", "cooc")
    assert wrong.returncode == 2
    assert "Did you mean coco?" in wrong.stderr
    beir(Path("data/beir/scifact"))
    checked = in_process("data", "check", "beir/scifact")
    assert checked.returncode == 2
    assert "1 of 300 queries" in checked.stdout
    assert "1 of 4 parts" in checked.stderr
    scan(tmp_path / "scan")
    assert in_process("data", "check", "scan", f"--data={tmp_path / 'scan'}").returncode == 0
