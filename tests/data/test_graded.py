"""Judged pairs: scores, records, queries, documents, and errors."""

import json
import pickle

import numpy as np
import pytest
from PIL import Image

from big_retrieval import config
from big_retrieval.data.build import make_source
from big_retrieval.data.images import transforms
from big_retrieval.data.images.decoding import OneOf, picture
from big_retrieval.data.inspection import format_qrels
from big_retrieval.errors import Damaged, UserError

QUERIES = [
    {"query_id": "q1", "query": "red shoes", "kind": "a"},
    {"query_id": "q2", "query": "lamp", "kind": "b"},
    {"query_id": "q3", "query": "never asked", "kind": "b"},
]
DOCUMENTS = [
    {"document_id": "d1", "title": "shoe", "kind": "x", "corpus": "A", "image": "1.png"},
    {"document_id": "d2", "title": "boot", "kind": "y", "corpus": "A", "image": None},
    {"document_id": "d3", "title": "", "kind": "y", "corpus": "B", "image": "3.png"},
    {"document_id": "d4", "kind": "z", "corpus": "A", "image": ["4.png", "1.png"]},
]
PAIRS = [
    {"query_id": "q2", "document_id": "d4", "score": 7, "note": "n0"},
    {"query_id": "q1", "document_id": "d1", "score": 100, "note": "n1"},
    {"query_id": "q1", "document_id": "d2", "score": 0.5, "note": "n2"},
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def folder(tmp_path):
    for number in range(5):
        Image.new("RGB", (4, 3), (number, 0, 0)).save(tmp_path / f"{number}.png")
    write(tmp_path / "pairs.jsonl", PAIRS)
    write(tmp_path / "queries.jsonl", QUERIES)
    write(tmp_path / "documents.jsonl", DOCUMENTS)
    return tmp_path


def source(folder, pairs=None, **keys):
    if pairs is not None:
        write(folder / "pairs.jsonl", pairs)
    keys = {
        "queries": str(folder / "queries.jsonl"),
        "documents": str(folder / "documents.jsonl"),
        "image": "image",
        **keys,
    }
    return make_source(config.Graded(path=str(folder / "pairs.jsonl"), **keys))


def pair(query, document, score=1, **more):
    return {"query_id": query, "document_id": document, "score": score, **more}


def judged(found):
    qrels = found.qrels
    pairs = zip(qrels.query.tolist(), qrels.document.tolist(), qrels.score.tolist(), strict=True)
    return {(found.queries.id(q), found.documents.id(d)): s for q, d, s in pairs}


def test_graded_record_has_columns_of_all_sides(folder):
    for found in (source(folder), pickle.loads(pickle.dumps(source(folder)))):
        assert len(found) == 3
        record = found[1]
        assert picture(record.pop("image"))[0, 0].tolist() == [1, 0, 0]
        assert record == {
            "query_id": "q1",
            "document_id": "d1",
            "score": 100.0,
            "note": "n1",
            "query": "red shoes",
            "query.kind": "a",
            "title": "shoe",
            "document.kind": "x",
            "corpus": "A",
            "id": "pairs-000001",
        }
        assert isinstance(record["score"], float)
        assert found[2]["image"] is None
        assert found[0]["title"] is None
        assert found.place(2).endswith("pairs.jsonl, line 3")


def test_graded_reads_judged_queries_and_all_documents(folder):
    found = source(folder)
    assert [found.queries[i]["query_id"] for i in range(2)] == ["q1", "q2"]
    assert len(found.queries) == 2
    assert [found.documents[i]["document_id"] for i in range(4)] == ["d1", "d2", "d3", "d4"]
    assert judged(found) == {("q2", "d4"): 7.0, ("q1", "d1"): 100.0, ("q1", "d2"): 0.5}
    assert found.notes == ("1 of 3 rows of queries are not judged",)
    assert source(folder, where=("note=n0",)).notes == ()  # as other pairs have the others
    assert found.queries[0]["kind"] == found.queries[0]["query.kind"] == "a"
    assert found.documents.value(1, "document.kind") == found.documents.value(1, "kind") == "y"
    assert found.documents[3]["title"] is None
    assert found.documents.place(2).endswith("documents.jsonl, line 3")
    assert list(found.captions()) == ["red shoes", "lamp", "shoe", "boot"]


def test_graded_values_open_no_image(folder):
    for number in range(5):
        (folder / f"{number}.png").unlink()
    found = source(folder)
    with pytest.raises(Damaged, match=r"documents.jsonl, line 1: the image .*1.png' cannot be"):
        found[1]
    assert found.texts(1, "title") == ("shoe",)
    assert found.texts(0, "query") == ("lamp",)
    values = [found.value(2, c) for c in ("note", "score", "query_id", "document.kind")]
    assert values == ["n2", 0.5, "q1", "y"]
    with pytest.raises(Damaged, match=r"pairs.jsonl, line 1: 'title' is None"):
        found.texts(0, "title")
    with pytest.raises(Damaged, match=r"documents.jsonl, line 3: 'title' has no text"):
        found.documents.texts(2, "title")
    with pytest.raises(UserError, match="pairs: pairs have no column 'kind'"):
        found.value(0, "kind")
    with pytest.raises(UserError, match=r"queries: .* column 'title'.* Correct the key"):
        found.queries.texts(0, "title")
    for records, index in ((found, 3), (found.documents, -1)):
        with pytest.raises(IndexError):
            records[index]


def test_graded_selects_documents(folder):
    found = source(folder, where_documents=("corpus=A",))
    assert [found.documents.id(i) for i in range(len(found.documents))] == ["d1", "d2", "d4"]
    assert judged(found)["q2", "d4"] == 7.0
    found = source(folder, where_documents=("kind=y",), pairs=[*PAIRS[1:], pair("q1", "d3")])
    assert "1 of 3 pairs have a document_id that documents lacks, the first" in found.notes[0]
    with pytest.raises(UserError, match="documents has no row with corpus=C; correct `where_docu"):
        source(folder, where_documents=("corpus=C",))


def test_graded_rejects_or_skips_unknown_ids(folder, capsys):
    lost = [*PAIRS, pair("q9", "d1"), pair("q1", "d9"), pair("q8", "d8"), pair("q1", None)]
    with pytest.raises(UserError, match=r"1 of 7 pairs have no document_id, the first one in .*7;"):
        source(folder, pairs=lost)
    with pytest.raises(UserError, match="2 of 6 pairs have a query_id that queries lacks, the first"
                       r" one 'q9' in .*pairs.jsonl, line 4; .* skip_unknown_ids"):  # fmt: skip
        source(folder, pairs=lost[:6])
    found = source(folder, pairs=lost, skip_unknown_ids=True)
    assert judged(found) == judged(source(folder, pairs=PAIRS))
    said = capsys.readouterr().err
    for note in (
        "1 of 7 pairs are skipped: they have no document_id",
        "2 of 6 pairs are skipped: they have a query_id that queries lacks",
        "1 of 4 pairs have a document_id that documents lacks, the first one 'd9' in ",
    ):
        assert f"warning: pairs: {note}" in said
        assert note in " ".join(found.notes)
    with pytest.raises(UserError, match="no pair is left: all 1 have a query_id that queries"):
        source(folder, pairs=[pair("q9", "d1")], skip_unknown_ids=True)


@pytest.mark.parametrize(
    ("pairs", "keys", "message"),
    [
        ([pair("q1", "d1", -1)], {}, "line 1: 'score' is -1; it must be 0 or more, and finite"),
        ([pair("q1", "d1"), pair("q1", "d2", None)], {}, "line 2: 'score' is missing"),
        ([pair("q1", "d1", "good")], {}, "line 1: 'score' is 'good', not a number"),
        ([pair("q1", "d1", float("inf"))], {}, "line 1: 'score' is inf"),
        ([pair("q1", "d1"), pair("q2", "d1"), pair("q1", "d1", 2)], {},
         "line 3: this pair has the score 2, but 1 in .*line 1"),
        ([pair("q1", "d1", 0)], {"score_from": "rank"}, "line 1: the rank is 0, not from 1 to 100"),
        ([pair("q1", "d1", 101)], {"score_from": "rank"}, "line 1: the rank is 101"),
        ([pair("q1", "d1", 0)], {"score_from": "clicks"}, "no pair is left: all 1 have no clicks"),
        ([pair("q1", "d1")], {"score": "clicks"}, "pairs has no column 'clicks'; it has document"),
        ([pair("q1", "d1")], {"where": ("score=9",)}, "no row with score=9"),
        ([pair("q1", "d1")], {"text": ("query", "name")}, "text has 'name', which neither"),
        ([pair("q1", "d1")], {"image": "picture"}, "documents has no column 'picture'"),
        ([pair("q1", "d1")], {"query_key": "id"}, "queries has no column 'id'; it has kind"),
    ],
)  # fmt: skip
def test_graded_rejects_bad_pairs(folder, pairs, keys, message):
    with pytest.raises(UserError, match=message):
        source(folder, pairs=pairs, **keys)


@pytest.mark.parametrize("side", ["queries", "documents"])
def test_graded_rejects_missing_and_duplicate_ids(folder, side):
    rows = {"queries": QUERIES, "documents": DOCUMENTS}[side]
    write(folder / f"{side}.jsonl", [*rows, rows[1]])
    which = len(rows) + 1
    with pytest.raises(UserError, match=rf"{side}.jsonl, line {which}: {side[:-3]}\w*_id '.2' is th"
                       rf"ere already \(.*{side}.jsonl, line 2\)"):  # fmt: skip
        source(folder)
    write(folder / f"{side}.jsonl", [rows[0], {"title": "no id"}])
    with pytest.raises(UserError, match=rf"{side}.jsonl, line 2: there is no '\w+_id'; give every"):
        source(folder)


def test_graded_skips_equal_pairs(folder, capsys):
    found = source(folder, pairs=[*PAIRS, PAIRS[1], PAIRS[1]])
    assert len(found) == 3
    assert "2 of 5 pairs are skipped: they repeat an earlier" in capsys.readouterr().err


def test_graded_samples_images_only_in_training(folder):
    image = source(folder)[0]["image"]
    assert isinstance(image, OneOf)
    assert transforms.evaluation_view(image, 2)[0, 0, 0] == picture(image)[0, 0, 0] == 4
    keys = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0)}
    drawn = {
        int(transforms.training_view(image, 2, rng=np.random.default_rng(i), **keys)[0, 0, 0])
        for i in range(20)
    }
    assert drawn == {4, 1}
    rng = np.random.default_rng(0)
    transforms.training_view(source(folder)[1]["image"], 2, rng=rng, **keys)  # draws nothing
    assert rng.random() == np.random.default_rng(0).random()


def test_graded_reads_images_by_key(folder):
    pixels = np.arange(3, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 3), np.uint8)
    gallery = str(folder / "gallery.npz")
    np.savez(gallery, image_id=np.array(["2.png", "4.png", "1.png"]), images=pixels)
    found = source(folder, images=gallery)
    for each in (found, pickle.loads(pickle.dumps(found))):
        assert picture(each[1]["image"])[0, 0, 0] == 2
        several = each.documents[3]["image"]
        assert [int(several.load(i)[0, 0, 0]) for i in range(several.count)] == [1, 2]
        assert each.documents[1]["image"] is None
        with pytest.raises(Damaged, match=r"line 3: gallery has no image '3.png'"):
            each.documents[2]
    np.savez(gallery, image_id=np.array(["a", "b", "a"]), images=pixels)
    with pytest.raises(UserError, match=r"row 3: image_id 'a' is there already \(.*row 1\)"):
        source(folder, images=gallery)
    with pytest.raises(UserError, match="gallery has no column 'pictures'; it has image_id, im"):
        source(folder, images=gallery, image_value="pictures")


def test_graded_keeps_column_named_image(folder):
    write(folder / "documents.jsonl", [{**d, "file": d["image"]} for d in DOCUMENTS])
    record = source(folder, image="file")[1]
    assert record["document.image"] == "1.png"
    assert picture(record["image"])[0, 0, 0] == 1
    assert "file" not in record
    assert source(folder, image="")[1]["image"] == "1.png"


def test_format_qrels_counts_pairs(folder):
    text = "\n".join(format_qrels(source(folder)))
    assert "3 pairs of 2 queries and 4 documents (3 of them judged); 1.5 a query, 1 to 2" in text
    assert "0.5 to 100, median 7" in text
    assert "skipped   1 of 3 rows of queries are not judged" in text
    assert format_qrels(make_source(config.Scenes(count=1))) == []
