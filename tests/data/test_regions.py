"""Fields of regions, and the files that they are read from."""

import dataclasses
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import RegionField
from big_retrieval.data.batches import RecordSpec, train_batch, try_record
from big_retrieval.data.build import make_source
from big_retrieval.data.fields.reader import Drawing, Tools
from big_retrieval.data.formats.regions import INDEX
from big_retrieval.data.in_memory import Values
from big_retrieval.data.order import Order
from big_retrieval.data.pipeline import eval_batches
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import Damaged, UserError
from tests.helpers import tiny

COUNT, R, F = 4, 3, 5
FEATURES = np.random.default_rng(0).normal(size=(COUNT, R, F)).astype(np.float32)
BOXES = np.sort(np.random.default_rng(1).random((COUNT, R, 2, 2)), axis=2)
BOXES = BOXES.reshape(COUNT, R, 4).astype(np.float32)
CAPTIONS = [[f"{n} {word}" for word in ("a", "b", "c", "d", "e")] for n in range(COUNT)]


def field(**keys: Any) -> RegionField:
    return RegionField(**{"regions": R, "dim": F, **keys})  # type: ignore[arg-type]


def batch_of(of: RecordSource, **keys: Any) -> dict[str, Any]:
    read = {"image": field(**keys).build(Tools())}
    try_record(of, read)
    size = len(of)
    return train_batch(of, RecordSpec(read), Order(size, 0), size, np.arange(size), 0)


def lines(folder: Path, **columns: Any) -> RecordSource:
    rows = [
        {"captions": CAPTIONS[n], **{k: v[n] for k, v in columns.items()}} for n in range(COUNT)
    ]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return make_source(configs.Pairs(path=str(folder / "pairs.jsonl"), image=""))


@pytest.mark.parametrize("form", ["columns", "files", "boxes_alone"])
def test_columns_and_files_give_equal_regions(tmp_path: Path, form: str) -> None:
    np.save(tmp_path / "f.npy", FEATURES[::-1])
    np.save(tmp_path / "b.npy", BOXES[::-1])
    files = {"file": str(tmp_path / "f.npy"), "boxes_file": str(tmp_path / "b.npy")}
    numbers = list(range(COUNT))[::-1]
    columns, keys = {
        "columns": ({"regions": FEATURES.tolist(), "boxes": BOXES.tolist()}, {"boxes": "boxes"}),
        "files": ({"regions": numbers}, files),
        "boxes_alone": ({"regions": numbers, "boxes": BOXES.tolist()},
                        {"boxes": "boxes", "file": files["file"]}),
    }[form]  # fmt: skip
    of = lines(tmp_path, **columns)
    batch = batch_of(pickle.loads(pickle.dumps(of)), **keys)
    np.testing.assert_array_equal(batch["image"]["features"], FEATURES[batch["record"]])
    np.testing.assert_array_equal(batch["image"]["boxes"], BOXES[batch["record"]])
    read = {"image": field(**keys).build(Tools())}
    (batch,) = eval_batches(of, read, field="image", batch_size=COUNT)
    np.testing.assert_array_equal(batch["image"]["features"], FEATURES)
    np.testing.assert_array_equal(batch["image"]["boxes"], BOXES)


def test_missing_boxes_are_0_and_optional_regions_may_be_missing(tmp_path: Path) -> None:
    of = lines(tmp_path, regions=[*FEATURES[:3].tolist(), None])
    batch = batch_of(of, optional=True)
    assert not batch["image"]["boxes"].any()
    for row, record in enumerate(batch["record"].tolist()):
        assert batch["image"]["present"][row] == (record < 3)
        np.testing.assert_array_equal(
            batch["image"]["features"][row], FEATURES[record] if record < 3 else 0
        )


def test_missing_boxes_of_a_record_are_damage(tmp_path: Path) -> None:
    of = lines(
        tmp_path,
        regions=[*FEATURES[:3].tolist(), None],
        boxes=[*BOXES[:2].tolist(), None, None],
    )
    reader = field(boxes="boxes", optional=True).build(Tools())
    assert reader.value(of, 3, 0) is None
    with pytest.raises(Damaged, match="boxes"):
        reader.value(of, 2, 0)
    with pytest.raises(Damaged, match="boxes"):
        reader.draw("image", of[2], Drawing("pairs", "row 2", 2, np.random.default_rng(0)))


def test_inputs_have_the_types_of_the_computation() -> None:
    import jax.numpy as jnp

    arrays = {"features": jnp.asarray(FEATURES), "boxes": jnp.asarray(BOXES)}
    features, boxes = field().inputs(arrays, jnp.bfloat16)
    assert (features.dtype, boxes.dtype) == (jnp.bfloat16, jnp.float32)
    assert field(dtype="float16").shapes()["features"] == ((R, F), "float16")


def test_generated_regions_are_small_and_depend_on_the_record() -> None:
    small = RegionField(boxes_file="b.npy", file="f.npy", column="row").runlocal()
    assert (small.regions, small.dim, small.file, small.boxes_file) == (6, 32, "", "")
    of = make_source(tiny().data)
    reader = small.build(Tools())
    arrays = reader.stack([reader.value(of, 3, 0), None])
    assert {k: v.shape[1:] for k, v in arrays.items()} == {"features": (6, 32), "boxes": (6, 4)}
    again = reader.value(of, 3, 0)
    assert all(np.array_equal(arrays[key][0], again[key]) for key in arrays)
    x1, y1, x2, y2 = arrays["boxes"][0].T
    assert all(np.all(each) for each in (x1 >= 0, x1 < x2, x2 <= 1, y1 >= 0, y1 < y2, y2 <= 1))
    assert reader.field.columns() == {}


def test_regions_in_memory_are_read() -> None:
    assert field().record(FEATURES[0]).keys() == {"regions"}
    part = field(boxes="b")
    of = Values([(FEATURES[1], BOXES[1]), (FEATURES[0], BOXES[0])], part)
    (batch,) = eval_batches(of, {"image": part.build(Tools())}, field="image", batch_size=2)
    np.testing.assert_array_equal(batch["image"]["features"], FEATURES[[1, 0]])
    np.testing.assert_array_equal(batch["image"]["boxes"], BOXES[[1, 0]])


WRONG = [
    ({"regions": FEATURES[:, :2].tolist()}, {}, r"line 1: 'regions' has the wrong shape, \(2, 5\)"),
    ({"regions": FEATURES.tolist(), "b": (BOXES * 640).tolist()}, {"boxes": "b"},
     r"line 1: 'b' holds boxes from .* to .*: divide them by the width"),
    ({"regions": FEATURES.tolist()}, {"boxes": "b"}, "no column 'b'"),
    ({"regions": [9] * COUNT}, {"file": "f.npy"}, r"f\.npy has no row 9"),
    ({"regions": [0] * COUNT}, {"file": "f.npy", "dim": 6},
     r"config\.fields\.image\.file .*f\.npy .*instead of float32 \[rows, 3, 6\]"),
    ({"regions": [0] * COUNT}, {"file": "f.npy", "boxes_file": "f.npy"},
     r"config\.fields\.image\.boxes_file .* instead of float32 \[rows, 3, 4\]"),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "keys", "words"), WRONG)
def test_try_record_rejects_wrong_regions(
    tmp_path: Path, columns: Any, keys: Any, words: str
) -> None:
    np.save(tmp_path / "f.npy", FEATURES)
    files = {k: str(tmp_path / v) for k, v in keys.items() if k in ("file", "boxes_file")}
    with pytest.raises(UserError, match=words):
        batch_of(lines(tmp_path, **columns), **{**keys, **files})


def test_keys_are_checked() -> None:
    from big_retrieval.config.checks.fields import check_fields

    config = tiny()
    for keys, words in [
        ({"column": ""}, "has neither column nor file"),
        ({"boxes": "b", "boxes_file": "b.npy"}, "boxes and boxes_file are both set"),
        ({}, "config.fields.r.tower is 'regions', which config.towers lacks"),
        ({"tower": "image"}, "whose type 'vit' cannot read fields of type 'regions'"),
    ]:
        changed = dataclasses.replace(config, fields={**config.fields, "r": field(**keys)})
        found = list(check_fields(changed))
        assert any(words in sentence for sentence in found), found


def vsrn(folder: Path, rows: np.ndarray, captions: list[str]) -> str:
    np.save(folder / "train_ims.npy", rows)
    (folder / "train_caps.txt").write_text("\n".join(captions) + "\n")
    return str(folder)


FLAT = [caption for captions in CAPTIONS for caption in captions]


@pytest.mark.parametrize("repeated", [1, 5])
def test_precomputed_reads_files_of_vsrn(tmp_path: Path, repeated: int) -> None:
    path = vsrn(tmp_path, np.repeat(FEATURES, repeated, axis=0), FLAT)
    of = make_source(configs.Precomputed(path=path))
    assert [of[n]["captions"] for n in range(len(of))] == [tuple(x) for x in CAPTIONS]
    batch = batch_of(pickle.loads(pickle.dumps(of)))
    np.testing.assert_array_equal(batch["image"]["features"], FEATURES[batch["record"]])
    each = make_source(configs.Precomputed(path=path, each="captions"))
    assert [each[n]["captions"] for n in range(len(each))] == [(text,) for text in FLAT]
    np.testing.assert_array_equal(each[7]["regions"], FEATURES[1])
    assert list(each.captions()) == FLAT


def test_precomputed_rejects_files_that_do_not_fit(tmp_path: Path) -> None:
    path = vsrn(tmp_path, FEATURES[:3], FLAT)
    with pytest.raises(
        UserError, match=r"train_ims\.npy has 3 rows for 20 captions of .*caps\.txt"
    ):
        make_source(configs.Precomputed(path=path))
    cut = tmp_path / "cut"
    cut.mkdir()
    vsrn(cut, FEATURES, FLAT)
    (cut / "train_ims.npy").write_bytes((cut / "train_ims.npy").read_bytes()[:-4])
    with pytest.raises(UserError, match=r"train_ims\.npy is not a \.npy file"):
        make_source(configs.Precomputed(path=str(cut)))
    with pytest.raises(UserError, match=r"Cannot read the captions .*dev_caps\.txt"):
        make_source(configs.Precomputed(path=path, split="dev"))
    damaged = FEATURES.copy()
    damaged[:, 1, 1] = np.nan
    folder = tmp_path / "other"
    folder.mkdir()
    of = make_source(configs.Precomputed(path=vsrn(folder, damaged, FLAT)))
    with pytest.raises(
        UserError, match=r"train_ims\.npy, row 0\): 'regions' holds a number that is"
    ):
        batch_of(of)


def regions_folder(folder: Path, ids: list[str], count: int = COUNT) -> str:
    folder.mkdir(exist_ok=True)
    np.save(folder / "features.npy", FEATURES[:count])
    np.save(folder / "boxes.npy", BOXES[:count])
    (folder / INDEX).write_text(json.dumps({"ids": ids}))
    return str(folder)


def split_file(folder: Path, **keys: Any) -> str:
    images = [
        {
            "filename": f"{10 + n}.jpg",
            "split": "train" if n else "restval",
            "sentences": [{"raw": text} for text in CAPTIONS[n]],
            **{k: v[n] for k, v in keys.items()},
        }
        for n in range(COUNT)
    ]
    (folder / "dataset.json").write_text(json.dumps({"images": images}))
    return str(folder / "dataset.json")


@pytest.mark.parametrize("ids", [["7", "3", "8", "1"], ["13", "12", "11", "10"]])
def test_karpathy_reads_regions(tmp_path: Path, ids: list[str]) -> None:
    path = split_file(tmp_path, **({"cocoid": [1, 8, 3, 7]} if "7" in ids else {}))
    regions = regions_folder(tmp_path / "regions", ids)
    source = configs.Karpathy(path=path, regions=regions, split="train+restval")
    of = make_source(source)
    batch = batch_of(of, boxes="boxes")
    np.testing.assert_array_equal(batch["image"]["features"], FEATURES[::-1][batch["record"]])
    np.testing.assert_array_equal(batch["image"]["boxes"], BOXES[::-1][batch["record"]])
    assert "image" not in of[0]
    each = make_source(dataclasses.replace(source, each="captions"))
    assert [each[n]["captions"] for n in range(len(each))] == [(text,) for text in FLAT]


def test_karpathy_names_missing_regions_and_images(tmp_path: Path, caplog: Any) -> None:
    path = split_file(tmp_path)
    regions = regions_folder(tmp_path / "regions", ["10", "12", "13", "99"])
    source = configs.Karpathy(path=path, regions=regions, split="train+restval")
    words = f"1 of 4 images of the split are missing in {regions}, the first one is 11: complete"
    with pytest.raises(UserError, match=re.escape(words)):
        make_source(source)
    of = make_source(dataclasses.replace(source, skip_missing=True))
    assert [of[n]["id"] for n in range(3)] == ["10.jpg", "12.jpg", "13.jpg"]
    assert "skips 1 of 4 images: missing" in caplog.text
    np.testing.assert_array_equal(of[1]["regions"], FEATURES[1])
    (tmp_path / "12.jpg").write_bytes(b"")
    source = configs.Karpathy(path=path)
    words = f"2 of 3 images of the split are missing in {tmp_path}, the first one is 11.jpg: "
    with pytest.raises(UserError, match=re.escape(words)):
        make_source(source)
    assert len(make_source(dataclasses.replace(source, skip_missing=True))) == 1
    assert "split restval" in caplog.text


def test_folders_that_hold_no_regions(tmp_path: Path) -> None:
    path = split_file(tmp_path)
    source = configs.Karpathy(path=path, regions=str(tmp_path))
    with pytest.raises(UserError, match=r"is not a folder of regions: regions\.json is missing"):
        make_source(source)
    regions = regions_folder(tmp_path / "regions", ["10", "11", "12", "13"], count=3)
    with pytest.raises(UserError, match=r"features\.npy has 3 rows for 4 images of regions\.json"):
        make_source(dataclasses.replace(source, regions=regions))
