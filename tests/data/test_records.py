"""Records of files: every form gives the same records, and errors name the location."""

import csv
import io
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from big_retrieval import config
from big_retrieval.data.build import make_source
from big_retrieval.data.formats.shards import convert
from big_retrieval.data.images.decoding import picture
from big_retrieval.data.images.transforms import evaluation_view
from big_retrieval.errors import Damaged, UserError
from big_retrieval.retrieval.documents import DocumentReader, open_records
from tests.data.files import red, write_tar

PAIRS = 7
CAPTIONS = [[f"a cat {i}", f"ein Tier, {i} \U0001f415\n2nd line"] for i in range(PAIRS)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pictures").mkdir()
    for number in range(PAIRS):
        (tmp_path / "pictures" / f"{number}.png").write_bytes(red(number))
    return tmp_path


def write(folder, lines, name="pairs.jsonl"):
    (folder / name).write_bytes("".join(line + "\n" for line in lines).encode())
    return folder / name


def line(number, text="a cat", **more):
    return json.dumps({"image": f"pictures/{number}.png", "captions": text, **more})


def pairs(path, **keys):
    return make_source(config.Pairs(path=str(path), **keys))


def as_jsonl(folder):
    return pairs(write(folder, [line(i, CAPTIONS[i], kind=i % 2) for i in range(PAIRS)]))


def as_csv(folder):
    with (folder / "pairs.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "title", "kind"])
        rows.writerows([f"pictures/{i}.png", "|".join(CAPTIONS[i]), i % 2] for i in range(PAIRS))
    return pairs(folder / "pairs.csv", image="file", text="title", separator="|")


def as_parquet(folder):
    images = [red(i) for i in range(PAIRS)]
    columns = {"image": images, "captions": CAPTIONS, "kind": [i % 2 for i in range(PAIRS)]}
    pq.write_table(pa.table(columns), folder / "pairs.parquet", row_group_size=3)
    return pairs(folder / "pairs.parquet")


def as_npz(folder):
    images = np.stack([np.asarray(Image.open(io.BytesIO(red(i)))) for i in range(PAIRS)])
    np.savez(folder / "images.npz", image=images, number=np.arange(PAIRS))
    lines = [
        json.dumps({"number": i, "captions": CAPTIONS[i], "kind": i % 2}) for i in range(PAIRS)
    ]
    texts = write(folder, reversed(lines), "texts.jsonl")
    return pairs(folder / "images.npz", join=str(texts), on="number")


def as_tar(folder):
    for number in range(2):
        members = []
        for i in range(4 * number, min(PAIRS, 4 * number + 4)):
            meta = json.dumps({"texts": CAPTIONS[i], "k": 1}).encode()
            contents = {"png": red(i), "json": meta, "txt": CAPTIONS[i][0].encode()}
            members += [(f"{i:06d}.{ending}", data) for ending, data in contents.items()]
        write_tar(folder / f"{number:05d}.tar", members)
    path = str(folder / "{00000..00001}.tar")
    return make_source(config.Tar(path=path, image=("jpg", "png"), text="json:texts"))


def as_shards(folder):
    convert(as_csv(folder), folder / "shards", shard_records=3, origin={}, max_damaged=0.0)
    return pairs(folder / "shards")


def as_karpathy(folder):
    images = [
        {
            "filename": f"{i}.png",
            "filepath": "pictures",
            "split": "train" if i % 2 else "restval",
            "cocoid": i,
            "sentences": [{"raw": text} for text in CAPTIONS[i]],
        }
        for i in range(PAIRS)
    ]
    images.append({**images[0], "split": "test"})
    (folder / "dataset.json").write_text(json.dumps({"images": images}))
    path = str(folder / "dataset.json")
    return make_source(config.Karpathy(path=path, split="train+restval"))


FORMS = [as_jsonl, as_csv, as_parquet, as_npz, as_tar, as_shards, as_karpathy]


@pytest.mark.parametrize("form", FORMS)
def test_pairs_reads_equal_records_from_every_form(form, folder):
    first = form(folder)
    assert len(first) == PAIRS
    for source in (first, pickle.loads(pickle.dumps(first))):
        records = [source[i] for i in range(PAIRS)]
        assert [record["captions"] for record in records] == [tuple(t) for t in CAPTIONS]
        assert [picture(record["image"])[0, 0].tolist() for record in records] == [
            [i, 0, 0] for i in range(PAIRS)
        ]
        assert list(source.captions()) == [text for texts in CAPTIONS for text in texts]
        assert source.texts(3, "captions") == tuple(CAPTIONS[3])
        with pytest.raises(IndexError):
            source[PAIRS]
    order = list(range(PAIRS)) * 30
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: picture(first[i]["image"])[0, 0, 0], order))
    assert found == order


@pytest.mark.parametrize("nothing", ["null", '""', "NaN"])
def test_records_image_may_be_none(folder, nothing):
    line_ = f'{{"image": {nothing}, "captions": "a"}}'
    source = pairs(write(folder, [line(0), line_]))
    assert source[1]["image"] is None
    with pytest.raises(Damaged, match="here: there is no image"):
        evaluation_view(source[1]["image"], 8, place="here")


def test_pairs_selects_and_joins(folder):
    lines = [line(i, split="train" if i % 3 else "test", code=i) for i in range(PAIRS)]
    write(folder, [json.dumps({"code": i, "label": f"l{i}"}) for i in range(5)], "labels.jsonl")
    source = pairs(
        write(folder, lines), where=("split=train",), join=str(folder / "labels.jsonl"), on="code"
    )
    assert len(source) == 4
    assert [source.value(i, "label") for i in range(3)] == ["l1", "l2", "l4"]
    with pytest.raises(Damaged, match=r"line 6: labels has no row with code 5"):
        source[3]


def in_folders(folder, image="image"):
    """Writes tables in two folders with equal image names; their red values are 0, 1, 10, 11."""
    for kind in (0, 1):
        (folder / f"{kind}").mkdir()
        rows = []
        for n in range(2):
            (folder / f"{kind}" / f"{n}.png").write_bytes(red(10 * kind + n))
            name = f"{kind}-{n}"
            rows.append({"captions": name, "query": "a", "id": name, "score": 1, "text": name})
            rows[-1][image] = [f"{n}.png"] if image != "image" else f"{n}.png"
        write(folder / f"{kind}", map(json.dumps, rows), "t.jsonl")
    return f"{folder}/*/t.jsonl"


def reds(source):
    return [picture(source[i]["image"])[0, 0, 0] for i in range(len(source))]


def test_pairs_reads_images_next_to_their_file(folder):
    path = in_folders(folder)
    source = pairs(path)
    assert reds(source) == reds(pickle.loads(pickle.dumps(source))) == [0, 1, 10, 11]
    assert reds(pairs(path, root=str(folder / "1"))) == [10, 11, 10, 11]
    found, _ = open_records(
        "data",
        path,
        DocumentReader("documents", texts={"text": ("text",)}, images={"image": "image"}),
    )
    assert reds(found) == [0, 1, 10, 11]


def test_graded_reads_images_next_to_their_file(folder):
    keys = {"query": "query", "document": "id", "score": "score", "text": ("query", "text")}
    path = in_folders(folder, "photo")
    for more in ({"image": "photo"}, {"image": "pic", "rename": ("pairs.photo=pic",)}):
        source = make_source(config.Graded(path=path, **keys, **more)).documents
        assert reds(source) == [0, 1, 10, 11]


def test_pairs_rejects_wrong_paths_and_columns(folder):
    path = write(folder, [line(0)])
    (folder / "empty").mkdir()
    write(folder, [json.dumps({"image": "a", "n": 1})] * 2, "twice.jsonl")
    for keys, message in [
        ({"path": folder / "nowhere.jsonl"}, r"nowhere\.jsonl is not on this machine"),
        ({"path": folder / "*.csv"}, r"\*\.csv is not on this machine"),
        ({"path": "x{0..1}y{10..9}"}, r"range \{10\.\.9\} .* is reversed\. Use \{9\.\.10\}"),
        ({"path": write(folder, ["", "  "], "empty.jsonl")}, r"empty\.jsonl has no rows"),
        ({"path": folder / "pictures" / "0.png"}, "of no known kind; known: .jsonl"),
        ({"path": folder / "empty"}, "is a folder without .* shards and without pictures"),
        ({"path": folder / "pictures"}, "pictures has no column 'captions'; it has folder, id, "),
        ({"path": path, "where": ("split=val",)}, "no column 'split'"),
        ({"path": path, "join": str(folder / "twice.jsonl"), "on": "image"}, "is there already"),
    ]:
        with pytest.raises(UserError, match=message):
            pairs(**keys)


def test_karpathy_limits_captions_and_names_splits(folder):
    as_karpathy(folder)
    path = str(folder / "dataset.json")
    assert make_source(config.Karpathy(path=path, captions=1))[0]["captions"] == ("a cat 1",)
    with pytest.raises(UserError, match="no split 'val'; it has restval, test, train"):
        make_source(config.Karpathy(path=path, split="val"))
    (folder / "dataset.json").write_text("[]")
    with pytest.raises(UserError, match="not a Karpathy split file"):
        make_source(config.Karpathy(path=path))


def test_each_caption_has_a_record_per_caption(folder):
    lines = [line(n, CAPTIONS[n], id=str(n)) for n in range(PAIRS)]
    lines[1] = line(1, [])  # a damaged one is a record, to be counted
    path = write(folder, lines)
    whole, each = pairs(path), pickle.loads(pickle.dumps(pairs(path, each="captions")))
    flat = [(n, text) for n in range(PAIRS) for text in CAPTIONS[n] if n != 1]
    flat.insert(len(CAPTIONS[0]), (1, None))
    assert len(each) == len(flat)
    for number, (n, text) in enumerate(flat):
        if text is None:
            with pytest.raises(Damaged, match="line 2: 'captions' has no text"):
                each[number]
            continue
        found = each[number]
        assert (found["captions"], found["id"]) == ((text,), str(n))
        assert picture(found["image"])[0, 0].tolist() == [n, 0, 0]
        assert each.texts(number, "captions") == (text,)
        assert each.value(number, "id") == str(n)
    assert list(each.captions()) == list(whole.captions())
    assert each.place(0) == f"{whole.place(0)}, caption 1"
    epoch = [each.order(3).record(place)[1] for place in range(len(each))]
    assert sorted(epoch) == list(range(len(each)))
    assert epoch != sorted(epoch)
    with pytest.raises(IndexError):
        each[len(each)]


def as_tar_of(path, texts):
    pairs = ((f"{n}.png", red(n), f"{n}.txt", text.encode()) for n, text in enumerate(texts))
    write_tar(path, [member for a, b, c, d in pairs for member in ((a, b), (c, d))])
    return str(path)


def test_tar_reads_lines_if_all_texts_have_as_many(folder):
    even = as_tar_of(folder / "even.tar", ["a\nb\n", "c\nd"])
    assert [x["captions"] for x in make_source(config.Tar(path=even))] == [("a", "b"), ("c", "d")]
    assert make_source(config.Tar(path=even, texts="one"))[0]["captions"] == ("a\nb",)
    uneven = as_tar_of(folder / "uneven.tar", ["a\nb", "c"])
    assert make_source(config.Tar(path=uneven))[0]["captions"] == ("a\nb",)
    assert make_source(config.Tar(path=uneven, texts="lines"))[0]["captions"] == ("a", "b")


def test_tar_reads_grown_shard_again(folder):
    as_tar(folder)
    assert len(make_source(config.Tar(path=str(folder / "*.tar")))) == PAIRS
    write_tar(folder / "00001.tar", [("new.png", red(9)), ("new.txt", b"new")], "a")
    source = make_source(config.Tar(path=str(folder / "*.tar")))
    assert (len(source), source[0]["captions"]) == (PAIRS + 1, ("a cat 0",))
    assert not list(folder.glob("*.npz"))


def test_records_values_open_no_image(folder):
    lines = [json.dumps({"image": "pictures/9.png", "label": 4}), line(1, label=2)]
    source = pairs(write(folder, lines), text="")
    assert [source.value(i, "label") for i in range(2)] == [4, 2]
    assert list(source.captions()) == []
    with pytest.raises(UserError, match="line 1: there is no 'kind'; it has captions, image, l"):
        source.value(0, "kind")
    lines = [json.dumps({"image": "pictures/9.png", "title": "a | b"}), line(1)]
    source = pairs(write(folder, lines), text="title", separator="|")
    assert source.value(0, "captions") == source.texts(0, "captions") == ("a", "b")
    assert list(source.captions())[:2] == ["a", "b"]
    assert source.value(0, "title") == "a | b"
