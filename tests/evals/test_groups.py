"""Records that share a group are right answers to each other; against sets and loops."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.data.sources import RecordSource
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals.encoding import SourceEncoder
from big_retrieval.evals.groups import check_group, distinct, encode_items, group_numbers
from big_retrieval.similarity import TOPOLOGIES
from tests.evals.bound import Bound, bound
from tests.evals.preset import PresetEncoder
from tests.helpers import tiny
from tests.readers import image_reader, text_reader

WORDS = ("cat", "dog", "emu")
TOKENIZER = wordpiece_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])
SPECS = {
    "image": image_reader("image", size=4),
    "text": text_reader("captions", length=6, tokenizer=TOKENIZER),
}
Records = list[tuple[Any, tuple[str, ...]]]  # group, captions
DRAWN = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", None]),
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=7,
)


class Listed(RecordSource):
    """Records at hand; the image says which one it is."""

    name = "listed"

    def __init__(self, records: Records) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        group, captions = self.records[index]
        image = np.full((4, 4, 3), index, np.uint8)
        return {"image": image, "captions": captions, "kind": group}

    def captions(self) -> Iterator[str]:
        return (text for _, captions in self.records for text in captions)


class Seen(PresetEncoder):
    """An encoder whose embeddings depend on what is read, alone: on pixels and on token ids."""

    def __init__(self, devices: int = 1) -> None:
        mesh = parallel.make_mesh(tiny(batch_size=8), jax.devices()[:devices])
        super().__init__(None, mesh, 8)  # type: ignore
        self.encoded: dict[str, int] = {}

    def gradcam_obstacle(self, text: str, image: str) -> str:
        return "there is no model"

    def embeddings(self, weights: Any, field: str, batches: Any) -> tuple[np.ndarray, np.ndarray]:
        found, records = [], []
        for batch in batches:
            if field == "image":
                key = batch[field]["pixels"][:, 0, 0, :1].astype(np.int64)  # [b, 1]
            else:
                key = batch[field]["ids"].astype(np.int64)  # [b, L]
            found.append(embedding(key)[batch["valid"]])
            records.append(batch["record"][batch["valid"]])
        self.encoded[field] = sum(map(len, found))
        return np.concatenate(found), np.concatenate(records)


def embedding(key: np.ndarray) -> np.ndarray:
    """An embedding of numbers [b, K]: float32 [b, 1, 3]."""
    mixed = (key * (7 ** np.arange(key.shape[1]) % 101)).sum(axis=1)  # [b]
    return np.sin(mixed[:, None, None] * np.array([1.0, 2.3, 3.7])).astype(np.float32)


def place_of_text(text: str) -> np.ndarray:
    return embedding(TOKENIZER.encode([text], 6)[0].astype(np.int64))[0, 0]


def place_of_image(number: int) -> np.ndarray:
    return embedding(np.array([[number]]))[0, 0]


def plain_metrics(
    images: list[Any], texts: list[Any], is_positive: Callable[[Any, Any], bool]
) -> dict[str, float]:
    """Computes the metrics by loops over (key, embedding); `is_positive` compares two keys."""
    out = {}
    for way, queries, answers in (
        ("image_to_text", images, texts), ("text_to_image", texts, images)
    ):  # fmt: skip
        places, precisions, ndcgs = [], [], []
        for asked, place in queries:
            pairs = [(asked, key) if queries is images else (key, asked) for key, _ in answers]
            scores = [  # rounded, as equal ones may differ in the last bit
                (-round(float(-np.linalg.norm(place - p)), 5), is_positive(*pair))
                for pair, (_, p) in zip(pairs, answers, strict=True)
            ]
            best = min(score for score, right in scores if right)
            places.append(1 + sum(not right and score <= best for score, right in scores))
            keys, count = sorted(scores), sum(right for _, right in scores)
            precisions.append(sum(right for _, right in keys[:count]) / count)
            gains = [right / np.log2(rank) for rank, (_, right) in enumerate(keys[:10], 2)]
            ndcgs.append(sum(gains) / sum(1 / np.log2(np.arange(2, min(count, 10) + 2))))
        out |= {f"{way}/R@{k}": float(np.mean([p <= k for p in places])) for k in (1, 2)}
        out[f"{way}/R-precision"] = float(np.mean(precisions))
        out[f"{way}/MRR@10"] = float(np.mean([1 / p if p <= 10 else 0 for p in places]))
        out[f"{way}/nDCG@10"] = float(np.mean(ndcgs))
        out[f"{way}/mean_rank"] = float(np.mean(places))
        out[f"{way}/median_rank"] = float(np.floor(np.median(places)))
    recalls = [value for name, value in out.items() if "/R@" in name]
    return out | {"rsum": 100 * sum(recalls), "R-mean": sum(recalls) / 4}


def plain(records: Records) -> dict[str, float]:
    """The metrics of groups, whose equal texts count once."""
    kinds = [group if group is not None else i for i, (group, _) in enumerate(records)]
    images = [(kind, place_of_image(i)) for i, kind in enumerate(kinds)]
    pairs = dict.fromkeys((k, t) for k, (_, ts) in zip(kinds, records, strict=True) for t in ts)
    texts = [(kind, place_of_text(text)) for kind, text in pairs]
    return plain_metrics(images, texts, lambda image, text: image == text)


def evaluator(records: Records, group: str = "kind", devices: int = 1) -> Bound:
    return bound(
        configs.Retrieval(group=group, recall_at=(1, 2)), Listed(records), SPECS,
        TOPOLOGIES["euclidean"], Seen(devices),
    )  # fmt: skip


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(records=DRAWN)
def test_numbers_are_those_of_sets_and_loops(records: Records) -> None:
    task = evaluator(records)
    assert task.run({}) == pytest.approx(plain(records))
    kinds = [group if group is not None else i for i, (group, _) in enumerate(records)]
    pairs = {(k, t) for k, (_, texts) in zip(kinds, records, strict=True) for t in texts}
    assert task.context.encoder.encoded == {"image": len(records), "text": len(pairs)}  # type: ignore


def test_on_eight_devices_and_with_examples() -> None:
    records: Records = [
        ("a", ("cat", "dog")),
        ("b", ("cat",)),
        ("a", ("dog", "emu")),
        ("b", ("cat",)),
    ]
    found, shown = evaluator(records, devices=8).examples({})
    assert found == pytest.approx(plain(records))
    to_text, to_image = shown["directions"]
    assert (to_text["queries"], to_text["answers"]) == (4, 4)  # a: cat, dog; b: cat; a: emu
    asked = {
        e["place"]: e for group in to_image["groups"] for e in group["examples"]
    }  # fmt: skip
    assert [asked[i]["query"]["text"] for i in range(4)] == ["cat", "dog", "cat", "emu"]
    for example in asked.values():
        kind = records[example["query"]["record"]][0]
        assert example["right_answers"] == 2
        for answer in example["answers"]:
            assert answer["right"] == (records[answer["record"]][0] == kind)


def test_without_a_group_every_record_stands_for_itself() -> None:
    records: Records = [("a", ("cat", "dog")), ("a", ("cat",))]
    source = Listed(records)
    encoder = SourceEncoder(Seen(), {})
    side = encode_items(encoder, source, "text", SPECS["text"])
    assert side.owners.tolist() == [0, 0, 1]
    assert side.items.tolist() == [[0, 0], [0, 1], [1, 0]]
    grouped = encode_items(encoder, source, "text", SPECS["text"], group_numbers(source, "kind"))
    assert grouped.owners.tolist() == [0, 0]
    assert grouped.items.tolist() == [[0, 0], [0, 1]]
    np.testing.assert_array_equal(grouped.embeddings, side.embeddings[:2])


def test_texts_count_once_in_a_group_and_again_in_another() -> None:
    source = Listed([("a", ("cat", "cat")), ("b", ("dog", "cat")), ("a", ("dog", "cat"))])
    found = distinct(source, SPECS["text"], group_numbers(source, "kind"))
    assert found.tolist() == [[0, 0], [1, 0], [1, 1], [2, 0]]


def test_what_has_no_group_is_alone() -> None:
    values = ["", None, float("nan"), 0, "0", "", 0.0, np.int64(7), 7, ("x", "y"), ("x", "y")]
    source = Listed([(value, ("cat",)) for value in values])
    found = group_numbers(source, "kind").tolist()
    assert found == [0, 1, 2, 3, 4, 5, 3, 6, 6, 7, 7]


def test_a_damaged_record_is_alone() -> None:
    class Broken(Listed):
        def value(self, index: int, column: str) -> Any:
            if index == 1:
                raise Damaged("record 1", "the line is cut")
            return self.records[index][0]

    source = Broken([("a", ("cat",)), ("a", ("cat",)), ("a", ("cat",))])
    assert group_numbers(source, "kind").tolist() == [0, 1, 0]


def test_a_wrong_column_is_an_error_before_anything_is_encoded() -> None:
    for group, words in (("kin", "no column 'kin'"), ("image", "group column 'image'")):
        task = evaluator([("a", ("cat",))], group)
        with pytest.raises(UserError, match=words):
            task.check()
        with pytest.raises(UserError, match=words):
            task.run({})
        assert task.context.encoder.encoded == {}  # type: ignore
    evaluator([("a", ("cat",))]).check()


def test_a_column_without_any_value_is_an_error_too() -> None:
    """As JSON lines have it, whose rows may differ: a misspelt column is missing in every one."""

    class Lines(Listed):
        def value(self, index: int, column: str) -> Any:
            raise Damaged(f"line {index}", f"there is no {column!r}")

    lines = Lines([("a", ("cat",)), ("a", ("dog",))])
    with pytest.raises(UserError, match="no record has a value in the group column 'kind'"):
        check_group(lines, "kind")
    evaluator([(None, ("cat",)), ("a", ("dog",))]).check()
