"""Published files of regions become memory-mapped ones."""

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.data.build import make_source

R, F, WIDTH, HEIGHT = 3, 5, 640, 480
IDS = ["30", "7", "12"]
FEATURES = np.random.default_rng(0).normal(size=(3, R, F)).astype(np.float32)
BOXES = np.sort(np.random.default_rng(1).random((3, R, 2, 2)), axis=2).reshape(3, R, 4)
PIXELS = (BOXES * [WIDTH, HEIGHT, WIDTH, HEIGHT]).astype(np.float32)


def cells(image: int, **changes: Any) -> list[bytes]:
    found = {"id": IDS[image], "w": WIDTH, "h": HEIGHT, "n": R, "boxes": PIXELS[image],
             "features": FEATURES[image], **changes}  # fmt: skip
    return [
        base64.b64encode(value.astype("<f4").tobytes())
        if isinstance(value, np.ndarray)
        else str(value).encode()
        for value in found.values()
    ]


def tsv(path: Path, *lines: list[bytes]) -> str:
    path.write_bytes(b"".join(b"\t".join(line) + b"\n" for line in lines))
    return str(path)


def convert(data: str, out: Path, *flags: str) -> Any:
    script = "examples/convert_regions.py"
    command = [sys.executable, script, f"--data={data}", f"--out={out}", *flags]
    return subprocess.run(command, capture_output=True, text=True)


def check_folder(folder: Path, order: list[int]) -> None:
    images = [{"filename": f"{IDS[n]}.jpg", "split": "train", "sentences": [{"raw": IDS[n]}]}
              for n in range(3)]  # fmt: skip
    (folder / "dataset.json").write_text(json.dumps({"images": images}))
    of = make_source(configs.Karpathy(path=str(folder / "dataset.json"), regions=str(folder)))
    for n in range(3):
        np.testing.assert_array_equal(of[n]["regions"], FEATURES[n])
        np.testing.assert_allclose(of[n]["boxes"], BOXES[n], atol=1e-6)
    assert json.loads((folder / "regions.json").read_text())["ids"] == [IDS[n] for n in order]
    assert not list(folder.glob("*.partial"))


def test_convert_regions_reads_tsv(tmp_path: Path) -> None:
    first = tsv(tmp_path / "a.tsv", cells(0), cells(1), cells(0))
    second = tsv(tmp_path / "b.tsv", cells(2))
    done = convert(f"{first},{second}", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "1 images occur a second time" in done.stdout
    assert "3 images under" in done.stdout
    check_folder(tmp_path / "out", [0, 1, 2])


def test_convert_regions_reads_tern_folders(tmp_path: Path) -> None:
    for name in ("att", "box"):
        (tmp_path / name).mkdir()
    for n in range(3):
        np.savez(tmp_path / "att" / f"{IDS[n]}.npz", feat=FEATURES[n])
        np.save(tmp_path / "box" / f"{IDS[n]}.npy", PIXELS[n])
    sizes = [{"id": int(name), "width": WIDTH, "height": HEIGHT} for name in IDS]
    (tmp_path / "captions.json").write_text(json.dumps({"images": sizes}))
    args = [str(tmp_path / "att"), tmp_path / "out", f"--boxes={tmp_path / 'box'}",
            f"--sizes={tmp_path / 'captions.json'}"]  # fmt: skip
    assert convert(*args).returncode == 0
    check_folder(tmp_path / "out", [1, 2, 0])
    (tmp_path / "box" / "12.npy").unlink()
    assert "12.npy is missing or damaged" in convert(*args).stderr
    assert not (tmp_path / "out" / "regions.json").exists()  # a half-made folder is none
    (tmp_path / "captions.json").write_text(json.dumps({"images": sizes[:1]}))
    assert "no file of --sizes has an image 7" in convert(*args).stderr
    assert "--data=FOLDER needs --boxes=FOLDER and --sizes" in convert(*args[:3]).stderr


NAN = FEATURES[1].copy()
NAN[2, 1] = np.nan
CUT = [*cells(1)[:5], cells(1)[5][:-6]]
WRONG = [
    (CUT, "a.tsv, line 2: its features are not base64 or cut short ("),
    ([*cells(1)[:5], cells(1)[5][:-8]], "a.tsv, line 2: its features are "),
    (cells(1)[:5], "a.tsv, line 2 has 5 cells instead of image_id, image_w"),
    (cells(1, w="x"), "a.tsv, line 2: its sizes are not whole numbers"),
    (cells(1, w=0), "a.tsv, line 2: its image is 0 x 480 pixels"),
    (cells(1, w=64), "a.tsv, line 2 has boxes outside of its image of 64 x 480 pixels"),
    (cells(1, features=NAN), "a.tsv, line 2 holds a number that is not finite"),
    (cells(1, features=FEATURES[1][:, :4]),
     "a.tsv, line 2 has an array [3, 4], the first image [3, 5]"),
    (cells(1, n=2, features=FEATURES[1][:2], boxes=PIXELS[1][:2]),
     "a.tsv, line 2 has an array [2, 5], the first image [3, 5]"),
    (cells(1, boxes=PIXELS[1][:, :2]), "a.tsv, line 2 has boxes [3, 2] for 3 regions"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "words"), WRONG)
def test_convert_regions_names_bad_lines(tmp_path: Path, line: list[bytes], words: str) -> None:
    path = tsv(tmp_path / "a.tsv", cells(0), line)
    done = convert(path, tmp_path / "out")
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert not list((tmp_path / "out").glob("*.npy*"))


def test_convert_regions_rejects_missing_files(tmp_path: Path) -> None:
    assert "none.tsv" in convert(str(tmp_path / "none.tsv"), tmp_path).stderr
    empty = tsv(tmp_path / "a.tsv")
    assert "there are no regions in --data" in convert(empty, tmp_path / "out").stderr
