"""`big-retrieval data inspect` and `convert`."""

import json

import numpy as np
import pytest
from PIL import Image

from big_retrieval import config
from big_retrieval.data import inspection
from big_retrieval.data.build import make_source
from big_retrieval.data.formats.shards import INDEX, convert
from big_retrieval.data.images.decoding import picture
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.errors import UserError
from tests.helpers import in_process
from tests.readers import image_reader, text_reader


@pytest.fixture
def folder(tmp_path):
    lines = []
    for number in range(20):
        Image.new("RGB", (8, 6), (number % 15, 0, 0)).save(tmp_path / f"{number}.png")
        text = "word " * number if number else "a"
        lines.append(json.dumps({"image": f"{number}.png", "captions": [text, "the same"]}))
    (tmp_path / "7.png").write_bytes(b"")
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    return tmp_path


KEYS = {"shard_records": 6, "origin": {}, "max_damaged": 1.0}


def source_of(folder):
    return make_source(config.Pairs(path=str(folder / "pairs.jsonl")))


def data(*args):
    return in_process("data", *args)


def test_inspection_counts_sample(folder):
    tokenizer = wordpiece_tokenizer(learn_wordpiece(["word the same a"], 100))
    specs = {
        "image": image_reader("image", size=8),
        "text": text_reader("captions", length=12, tokenizer=tokenizer),
    }
    sample = inspection.sample_records(source_of(folder), specs, 1000)
    text = "\n".join(inspection.format_inspection(source_of(folder), specs, sample))
    assert sample.read == 20
    assert sample.damaged == {"the image is empty": 1}
    assert "20 in pairs; looked at: all" in text
    assert "1 (5.00%): 1 x the image is empty" in text
    assert "median 6 x 8" in text
    assert "2.00 a record, 18 duplicates, most often 'the same' (19 x)" in text
    image, shared = inspection.format_shared(source_of(folder), specs)
    assert "10 of 20 records have one that others have, too (5 different)" in image
    assert " of 20 records have one that others have, too (1 different)" in shared
    texts = [text for n in range(20) if n != 7 for text in source_of(folder).texts(n, "captions")]
    cut = np.mean(tokenizer.encode(texts, 500)[1].sum(1) > 12)
    assert f"the context has 12, so {cut:.1%} are cut" in text
    assert len(sample.examples) == 5


def test_inspection_finds_fields_despite_damage(folder):
    specs = {
        "image": image_reader("image", size=8),
        "text": text_reader("name", length=12),
    }
    (folder / "0.png").write_bytes(b"")  # found out when it is decoded
    (folder / "1.png").unlink()  # found out at once
    lines = (folder / "pairs.jsonl").read_text().splitlines()
    (folder / "pairs.jsonl").write_text("\n".join(lines[1:]))
    assert list(inspection.available_fields(source_of(folder), specs, 20)) == ["image"]
    assert list(inspection.available_fields(source_of(folder), specs, 1)) == ["image", "text"]


def test_convert_keeps_order_bytes_and_columns(folder):
    index, damage = convert(source_of(folder), folder / "out", **KEYS)
    assert damage.count == 1
    assert [shard["records"] for shard in index["shards"]] == [5, 4, 5, 5]
    found = make_source(config.Pairs(path=str(folder / "out")))
    kept = [i for i in range(20) if i != 7]
    assert len(found) == 19
    for place, number in enumerate(kept):
        record, original = found[place], source_of(folder)[number]
        assert record["captions"] == original["captions"]
        assert record["image"].data == original["image"].data
        assert record["id"] == f"pairs-{number:06d}"


def test_convert_rejects_incomplete_folder(folder, monkeypatch):
    def stop(index):
        if index == 12:
            raise KeyboardInterrupt

    source = source_of(folder)
    monkeypatch.setattr(source, "check_index", stop)
    with pytest.raises(KeyboardInterrupt):
        convert(source, folder / "out", **KEYS)
    with pytest.raises(UserError, match="the conversion is incomplete"):
        make_source(config.Pairs(path=str(folder / "out")))
    convert(source_of(folder), folder / "out", **KEYS)
    assert len(make_source(config.Pairs(path=str(folder / "out")))) == 19
    (folder / "out" / INDEX).write_text('{"format": 9, "shards": [], "columns": []}')
    with pytest.raises(UserError, match="has format 9"):
        make_source(config.Pairs(path=str(folder / "out")))


def test_convert_writes_arrays_without_loss(tmp_path):
    scenes = make_source(config.Scenes(split="colours", count=4))
    convert(scenes, tmp_path / "s", **KEYS)
    found = make_source(config.Pairs(path=str(tmp_path / "s")))
    assert found.classes == scenes.classes
    for number in range(4):
        np.testing.assert_array_equal(picture(found[number]["image"]), scenes[number]["image"])
        assert found.value(number, "colour") == scenes[number]["colour"]


@pytest.mark.slow
def test_inspect_and_convert_commands(folder, tmp_path):
    quick = "--config=configs/quickstart.py:runlocal"
    out = data("inspect", quick, "--limit=50", "--config.total_steps=None")
    assert out.returncode == 0, out.stderr
    for word in ("4,000 in scenes-train", "damaged     0", "the context has 20"):
        assert word in out.stdout
    out = data("convert", quick, "--source=evals.test", f"--out={tmp_path / 'c'}")
    assert "200 records in 1 shard" in out.stdout, out.stderr
    own = ("--config.data.type=pairs", f"--config.data.path={folder / 'pairs.jsonl'}")
    for _ in range(2):  # a second conversion names what it skipped, not what the first one did
        out = data("convert", quick, *own, f"--out={tmp_path / 'd'}")
        assert "skipped: 1 damaged record;" in out.stdout, out.stderr
        assert "19 records in 1 shard" in out.stdout
        named = (tmp_path / "d" / "skipped.jsonl").read_text().splitlines()
        assert [json.loads(line)["record"] for line in named] == [7]
    for words, message in [
        (("convert", quick), "--out is missing"),
        (("inspect", quick, "--source=evals.tests"), "the config has: data, evals.colours"),
    ]:
        out = data(*words)
        assert (out.returncode, "Traceback" in out.stderr) == (2, False)
        assert message in out.stderr
