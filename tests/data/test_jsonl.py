"""Own pairs: every mistake in the file is named with its line."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from big_retrieval.data.jsonl import JsonLines
from big_retrieval.errors import UserError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pictures").mkdir()
    for number in range(3):
        Image.new("RGB", (4, 3), (number, 0, 0)).save(tmp_path / "pictures" / f"{number}.png")
    return tmp_path


def write(folder, lines, name="pairs.jsonl"):
    (folder / name).write_bytes("".join(line + "\n" for line in lines).encode())
    return folder / name


def line(number, text="a cat", **more):
    return json.dumps({"image": f"pictures/{number}.png", "captions": text, **more})


def test_reads_images_texts_and_other_columns(folder):
    path = write(folder, [line(0), line(1, ["ein Hund 🐕", "a dog"], id="d", year=3), "", line(2)])
    source = JsonLines(path)
    assert len(source) == 3
    record = source[1]
    assert record["captions"] == ("ein Hund 🐕", "a dog")
    assert (record["id"], record["year"]) == ("d", 3)
    assert record["image"].shape == (3, 4, 3)
    assert [source[i]["image"][0, 0, 0] for i in range(3)] == [0, 1, 2]
    assert source[2]["id"] == "pairs-000002"
    assert list(source.captions()) == ["a cat", "ein Hund 🐕", "a dog", "a cat"]


def test_other_names_root_line_ends_and_no_last_newline(folder):
    (folder / "lists").mkdir()
    lines = [json.dumps({"file": f"{n}.png", "title": f"t{n}"}) for n in range(2)]
    path = folder / "lists" / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    source = JsonLines(path, image="file", text="title", root=folder / "pictures")
    assert [source[i]["title"] for i in range(2)] == [("t0",), ("t1",)]
    assert source[1]["file"][0, 0, 0] == 1


def test_threads_and_pickling(folder):
    source = JsonLines(write(folder, [line(i % 3, f"text {i}") for i in range(200)]))
    source = pickle.loads(pickle.dumps(source))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: source[i], range(200)))
    assert [record["captions"] for record in found] == [(f"text {i}",) for i in range(200)]
    assert all(np.all(record["image"][..., 0] == i % 3) for i, record in enumerate(found))


def test_captions_and_texts_open_no_image(folder):
    source = JsonLines(write(folder, [line(7, "lost picture")]))
    assert list(source.captions()) == ["lost picture"]
    assert source.texts(0, "captions") == ("lost picture",)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{not json}", "line 3 is not JSON"),
        ("[1, 2]", "line 3 is not a JSON object"),
        (
            '{"image": "pictures/0.png", "text": "a"}',
            "line 3 has no 'captions'; it has image, text",
        ),
        ('{"captions": "a"}', "line 3 has no 'image'"),
        ('{"image": "pictures/9.png", "captions": "a"}', "line 3 names the image 'pictures/9.png'"),
        ('{"image": null, "captions": "a"}', "line 3 names the image None"),
        (
            '{"image": "pairs.jsonl", "captions": "a"}',
            "line 3: .*pairs.jsonl is not a readable image",
        ),
        ('{"image": "pictures/0.png", "captions": []}', "line 3: column 'captions' is"),
        ('{"image": "pictures/0.png", "captions": 3}', "line 3: column 'captions' is 3"),
    ],
)
def test_a_bad_line_is_named(folder, bad, message):
    source = JsonLines(write(folder, [line(0), "", bad]))
    assert source[0]["captions"] == ("a cat",)
    with pytest.raises(UserError, match=f"pairs.jsonl, {message}"):
        source[1]


def test_missing_and_empty_files(folder):
    with pytest.raises(UserError, match=r"no file .*nowhere\.jsonl"):
        JsonLines(folder / "nowhere.jsonl")
    with pytest.raises(UserError, match=r"pairs\.jsonl has no lines"):
        JsonLines(write(folder, ["", "  "]))
    with pytest.raises(IndexError):
        JsonLines(write(folder, [line(0)]))[1]


def test_values_open_no_image_and_texts_may_be_missing(folder):
    lines = [json.dumps({"image": "pictures/9.png", "label": 4}), line(1, label=2)]
    source = JsonLines(write(folder, lines), text="")
    assert [source.value(i, "label") for i in range(2)] == [4, 2]
    assert list(source.captions()) == []
    assert source[1]["captions"] == "a cat"  # as it stands in the line
    with pytest.raises(UserError, match="line 1 has no 'kind'; it has image, label"):
        source.value(0, "kind")
    with pytest.raises(UserError, match="line 1 has no 'captions'"):
        JsonLines(folder / "pairs.jsonl").value(0, "captions")
