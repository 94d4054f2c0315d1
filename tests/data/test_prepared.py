"""TFDS data sets prepared as ArrayRecord, without TensorFlow."""

import io
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from big_retrieval import config
from big_retrieval.data.build import make_source
from big_retrieval.data.images.decoding import picture
from big_retrieval.errors import UserError
from big_retrieval.io import handles

COUNT = 12


class Toy(tfds.core.GeneratorBasedBuilder):
    """Captioned pictures in coco_captions' form, with a label."""

    VERSION = tfds.core.Version("1.2.0")

    def _info(self):
        captions = tfds.features.Sequence({"id": np.int64, "text": tfds.features.Text()})
        features = {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "image/filename": tfds.features.Text(),
            "label": tfds.features.ClassLabel(names=["cat", "dog"]),
            "captions": captions,
        }
        return tfds.core.DatasetInfo(
            builder=self, description="toy", features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(), "val": self._generate_examples(3)}

    def _generate_examples(self, count=COUNT):
        for i in range(count):
            out = io.BytesIO()
            Image.new("RGB", (5, 4), (i, 0, 0)).save(out, "PNG")
            out.seek(0)
            texts = [{"id": i, "text": f"caf\u00e9 {i}"}, {"id": i + 100, "text": f"second {i}"}]
            yield (
                f"k{i}",
                {"image": out, "image/filename": f"{i}.png", "label": i % 2, "captions": texts},
            )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("tfds")
    Toy(data_dir=place, file_format="array_record").download_and_prepare()
    return place


def toy(folder, **keys):
    keys = {"name": "toy", "text": "captions/text", **keys}
    return make_source(config.Tfds(folder=str(folder), **keys))


def test_features_become_columns(folder):
    first = toy(folder)
    assert first.name == "toy-train"
    assert first.classes == {"label": ("cat", "dog")}
    for source in (first, pickle.loads(pickle.dumps(first))):
        seen = set()
        for index in range(COUNT):
            record = source[index]
            number = int(record["image/filename"].split(".")[0])
            assert record["captions"] == (f"caf\u00e9 {number}", f"second {number}")
            assert picture(record["image"])[0, 0].tolist() == [number, 0, 0]
            assert source.value(index, "label") == number % 2
            seen.add(number)
        assert seen == set(range(COUNT))


def test_readers_are_those_of_all_formats_which_are_bounded(folder):
    source = toy(folder)
    source[0]
    opened = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.exists()]
    assert any(name.startswith(str(folder)) for name in opened)
    handles._handles.clear()
    opened = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.exists()]
    assert not any(name.startswith(str(folder)) for name in opened)
    assert source[0]["captions"]


def test_prepared_reads_slices_versions_and_folders(folder):
    assert len(toy(folder, split="train[:5]")) == 5
    assert len(toy(folder, split="val")) == 3
    assert len(toy(folder, name="toy:1.2.0")) == COUNT
    assert len(toy(folder / "toy" / "1.2.0", name="")) == COUNT


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"name": "coco"}, "coco is not prepared under .*tfds build coco"),
        ({"name": "toy:9.9.9"}, "toy 9.9.9 is not prepared"),
        ({"split": "test"}, "no split 'test'; it has train, val"),
        ({"image": "picture"}, "no feature 'picture'; it has captions, image"),
        ({"text": "title"}, "no column 'title'; it has captions/id, captions/text"),
        ({"name": "toy", "how_to_get": "ask a friend"}, "ask a friend"),
    ],
)  # fmt: skip
def test_prepared_names_what_is_missing(folder, keys, message, tmp_path):
    place = tmp_path if "how_to_get" in keys else folder
    with pytest.raises(UserError, match=message):
        toy(place, **keys)


def test_prepared_names_other_file_format(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "t")
    info = tmp_path / "t" / "toy" / "1.2.0" / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(UserError, match=r"file_format=array_record"):
        toy(tmp_path / "t")
