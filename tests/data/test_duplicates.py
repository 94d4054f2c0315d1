"""Records that share texts or images: their counts, and the ids of training rows."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval import config as configs
from big_retrieval.config import HardNegatives, PairLabels
from big_retrieval.data import duplicates
from big_retrieval.data.duplicates import SharedValues, content_ids, count_shared
from big_retrieval.data.fields.contents import ContentIds, image_key, key_id, text_key
from big_retrieval.data.fields.reader import Tools
from big_retrieval.data.formats.records import EachCaption, Records
from big_retrieval.data.formats.tables import Rows
from big_retrieval.data.images.decoding import Encoded
from big_retrieval.data.negatives import NegativeSampling
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from tests.helpers import tiny
from tests.readers import image_reader, text_reader, train_batch_of

WORDS = ("cat", "dog", "emu", "fox")
TOKENIZER = wordpiece_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])
READERS = {
    "image": image_reader("image", size=4),
    "text": text_reader("captions", length=6, tokenizer=TOKENIZER),
}
Listed = list[tuple[int, tuple[str, ...]]]  # which picture, captions
DRAWN = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=8,
)


def picture(which: int) -> np.ndarray:
    return np.full((4, 4, 3), which, np.uint8)


def source(records: Listed) -> Records:
    rows = [{"image": picture(which), "captions": list(texts)} for which, texts in records]
    return Records(Rows(rows, "pets"))


def test_keys_are_equal_for_equal_contents() -> None:
    assert text_key(" a cat\n") == text_key("a cat") == text_key(("", "a cat "))
    different = ("a cat", "A cat", ("a", "cat"), "acat")
    assert len(set(map(text_key, different))) == len(different)
    file = b"a file"
    assert image_key(Encoded(file, "here")) == image_key(file)
    assert image_key(picture(1)) == image_key(picture(1)) != image_key(picture(2))
    assert image_key(picture(0)) != image_key(picture(0).reshape(2, 8, 3))
    assert image_key(None) is image_key(["no", "pixels"]) is None
    numbers = {key_id(f"text {i}") for i in range(10_000)}
    assert len(numbers) == 10_000
    assert all(0 <= each < 2**31 for each in numbers)
    assert key_id(("a", "b")) != key_id(("ab", ""))


@settings(max_examples=60, deadline=None)
@given(records=DRAWN)
def test_count_shared_equals_a_plain_loop(records: Listed) -> None:
    found = count_shared(source(records), READERS)
    assert found.records == len(records)
    for name, lists in (
        ("image", [(which,) for which, _ in records]), ("text", [texts for _, texts in records]),
    ):  # fmt: skip
        held = [set(values) for values in lists]
        shared = {v for a, b in itertools.combinations(held, 2) for v in a & b}
        most = max(map(len, lists))
        count = sum(bool(each & shared) for each in held)
        assert found.shared[name] == SharedValues(len(records), count, len(shared), most)
    assert found.any == any(each.records for each in found.shared.values())


def test_count_shared_samples_large_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "ALL", 10)
    monkeypatch.setattr(duplicates, "SAMPLE", 4)
    monkeypatch.setattr(duplicates, "IMAGES", 4)
    records = source([(i % 5, (f"text {i}",)) for i in range(30)])
    found = count_shared(records, {"text": READERS["text"]})
    assert found.shared == {"text": SharedValues(4, 0, 0)}
    assert (found.records, found.any) == (30, True)  # the others may share some
    assert found.sentence("pets") == ""
    same = count_shared(source([(0, ("cat",))] * 30), {"text": READERS["text"]})
    assert same.sentence("pets").startswith("pets: 4 of 4 records (a sample of 30) share their")
    held = count_shared(source([(i, (f"text {i}",)) for i in range(8)]), READERS)
    assert {name: each.seen for name, each in held.shared.items()} == {"image": 4, "text": 8}
    config = tiny(total_steps=1)
    assert content_ids(config, records, READERS) == ContentIds(("text",), ("image",))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(records=DRAWN)
def test_content_ids_are_equal_for_positives(records: Listed) -> None:
    """A query matches a document if a record of this image has its text."""
    config, data = tiny(total_steps=1), source(records)
    ids = content_ids(config, data, READERS)
    if ids is None:
        assert count_shared(data, READERS).any is False
        return
    assert ids.queries == max(len(texts) for _, texts in records)
    words = {TOKENIZER.encode([word], 6)[0][0].tobytes(): word for word in WORDS}
    for index in range(3):
        keys: Any = {"size": 4, "seed": 3, "index": index}
        batch = train_batch_of(data, READERS, contents=ids, **keys)
        without = train_batch_of(data, READERS, **keys)
        for field in ("image", "text"):  # no other draw depends on the ids
            for key, array in without[field].items():
                np.testing.assert_array_equal(batch[field][key], array)
        query, document = batch["query_id"].reshape(4, -1), batch["document_id"]
        assert query.dtype == document.dtype == np.int32
        of = batch["record"]
        for i, j in itertools.product(range(4), repeat=2):
            asked = words[batch["text"]["ids"][i].tobytes()]
            said = asked in records[of[j]][1]
            assert bool((query[j] == query[i, 0]).any()) == said
            assert (document[i] == document[j]) == (records[of[i]][0] == records[of[j]][0])


def test_content_ids_needs_shared_values_and_no_named_columns(caplog: Any) -> None:
    caplog.set_level("INFO")
    same = source([(0, ("cat",)), (1, ("cat",))])
    config = tiny(total_steps=1)
    assert content_ids(config, source([(0, ("cat",)), (1, ("dog",))]), READERS) is None
    for labels in (PairLabels(document="id"), PairLabels(query="q"), PairLabels(duplicates=False)):
        assert content_ids(dataclasses.replace(config, labels=labels), same, READERS) is None
    keep = tiny(total_steps=1, losses__main__false_negatives="keep")
    assert content_ids(keep, same, READERS) is None
    assert not caplog.records
    assert content_ids(config, same, READERS) == ContentIds(("text",), ("image",))
    (told,) = caplog.records
    assert "2 of 2 records share their text" in told.getMessage()
    assert "config.labels.duplicates=False" in told.getMessage()


def test_captions_as_records_share_their_image() -> None:
    each = EachCaption(source([(0, ("cat", "dog")), (1, ("emu",))]))
    assert count_shared(each, READERS).shared == {
        "image": SharedValues(3, 2, 1),
        "text": SharedValues(3, 0, 0),
    }


def test_copies_of_an_image_file_are_shared(tmp_path: Path) -> None:
    for name, which in (("a", 1), ("b", 2), ("copy", 1)):
        PIL.Image.fromarray(picture(which)).save(tmp_path / f"{name}.png")
    cells = ["a.png", "b.png", {"bytes": None, "path": "copy.png"}, "gone.png", None]
    rows = [{"image": cell, "captions": [f"text {i}"]} for i, cell in enumerate(cells)]
    records = Records(Rows(rows, "pets"), root=tmp_path)
    assert count_shared(records, READERS).shared["image"] == SharedValues(5, 2, 1)


def test_hard_negatives_get_ids_of_equal_documents() -> None:
    texts = {
        "query": text_reader("query", length=6, tokenizer=TOKENIZER),
        "document": text_reader("text", length=6, tokenizer=TOKENIZER, side="document"),
    }
    rows = [
        {"query": "cat", "text": "dog", "negatives": ["emu", " dog"]},
        {"query": "fox", "text": "emu", "negatives": []},
    ]
    data = Records(Rows(rows, "talk"), image=(), text="")
    found = count_shared(data, texts, ("negatives", "document"))
    assert found.shared == dict.fromkeys(("query", "document"), SharedValues(2, 0, 0))
    assert found.negatives == 1
    assert "1 have a hard negative that is a document of theirs" in found.sentence("talk")
    sampling = NegativeSampling("document", "negatives", 2)
    ids = ContentIds(("query",), ("document",), negatives="document", count=2)
    batch = train_batch_of(data, texts, negatives=sampling, contents=ids)
    first = int(np.flatnonzero(batch["record"] == 0)[0])
    document, others = batch["document_id"], batch["negatives_id"]
    assert sorted(others[first]) == sorted(document)
    assert others[1 - first].tolist() == [-1, -1]
    assert set(ids.shapes()) <= batch.keys()


def test_side_of_several_fields_has_one_id() -> None:
    readers = {
        **READERS,
        "title": text_reader("title", length=6, tokenizer=TOKENIZER, optional=True),
    }
    rows = [
        {"image": picture(0), "captions": ["cat"], "title": "dog"},
        {"image": picture(0), "captions": ["emu"], "title": "dog"},
        {"image": picture(0), "captions": ["fox"], "title": "emu"},
        {"image": picture(0), "captions": ["cat"], "title": ""},
    ]
    ids = ContentIds(("text",), ("image", "title"))
    batch = train_batch_of(Records(Rows(rows, "shop")), readers, contents=ids)
    at = np.argsort(batch["record"])
    document, query = batch["document_id"][at], batch["query_id"][at]
    assert document[0] == document[1]
    assert query[0] == query[3]
    assert len(set(document.tolist())) == len(set(query.tolist())) == 3


def test_content_ids_counts_the_negatives_of_a_config() -> None:
    texts: Any = {
        name: configs.TextField(column=name, side=side, length=6)  # type: ignore[arg-type]
        for name, side in (("query", "query"), ("text", "document"))
    }
    config = dataclasses.replace(
        tiny(total_steps=1), fields=texts, negatives=HardNegatives(count=3, column="negatives")
    )
    readers = {name: field.build(Tools(TOKENIZER)) for name, field in texts.items()}
    rows = [{"query": "cat", "text": "dog", "negatives": []}] * 2
    found = content_ids(config, Records(Rows(rows, "talk"), image=(), text=""), readers)
    assert found == ContentIds(("query",), ("text",), negatives="text", count=3)
