"""Records that share a group are positives of each other; against sets and loops."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval import config as configs
from big_retrieval.data.sources import RecordSource
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals.encoding import SourceEncoder
from big_retrieval.evals.groups import check_group, distinct, encode_items, group_numbers
from big_retrieval.similarity import TOPOLOGIES
from tests.evals.bound import Bound, PresetEncoder, bound
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
    """Records in memory; the pixels are the record index."""

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


class InputEncoder(PresetEncoder):
    """An encoder whose embeddings depend only on pixels or token ids."""

    def take_rows(self, field: str, records: np.ndarray, batches: list[Any]) -> np.ndarray:
        del records
        rows = []
        for batch in batches:
            inputs = (
                batch[field]["pixels"][:, 0, 0, :1] if field == "image" else batch[field]["ids"]
            )
            rows.append(embedding(inputs.astype(np.int64))[batch["valid"]])
        return np.concatenate(rows)


def embedding(inputs: np.ndarray) -> np.ndarray:
    """An embedding float32 [b, 1, 3] of integers [b, K]."""
    mixed = (inputs * (7 ** np.arange(inputs.shape[1]) % 101)).sum(axis=1)  # [b]
    return np.sin(mixed[:, None, None] * np.array([1.0, 2.3, 3.7])).astype(np.float32)


def embed_text(text: str) -> np.ndarray:
    return embedding(TOKENIZER.encode([text], 6)[0].astype(np.int64))[0, 0]


def embed_image(pixel: int) -> np.ndarray:
    return embedding(np.array([[pixel]]))[0, 0]


def plain_metrics(
    images: list[Any], texts: list[Any], is_positive: Callable[[Any, Any], bool]
) -> dict[str, float]:
    """Computes the metrics by loops over (key, embedding); `is_positive` compares two keys."""
    out = {}
    for way in ("image_to_text", "text_to_image"):
        queries, answers = (images, texts) if way == "image_to_text" else (texts, images)
        ranks, precisions, ndcgs = [], [], []
        for query, point in queries:
            pairs = [(query, key) if queries is images else (key, query) for key, _ in answers]
            scores = [  # rounded, as equal scores may differ in the last bit
                (-round(float(-np.linalg.norm(point - p)), 5), is_positive(*pair))
                for pair, (_, p) in zip(pairs, answers, strict=True)
            ]
            best = min(score for score, positive in scores if positive)
            ranks.append(1 + sum(not positive and score <= best for score, positive in scores))
            keys, count = sorted(scores), sum(positive for _, positive in scores)
            precisions.append(sum(positive for _, positive in keys[:count]) / count)
            gains = [positive / np.log2(rank) for rank, (_, positive) in enumerate(keys[:10], 2)]
            ndcgs.append(sum(gains) / sum(1 / np.log2(np.arange(2, min(count, 10) + 2))))
        out |= {f"{way}/R@{k}": float(np.mean([p <= k for p in ranks])) for k in (1, 2)}
        out[f"{way}/R-precision"] = float(np.mean(precisions))
        out[f"{way}/MRR@10"] = float(np.mean([1 / p if p <= 10 else 0 for p in ranks]))
        out[f"{way}/nDCG@10"] = float(np.mean(ndcgs))
        out[f"{way}/mean_rank"] = float(np.mean(ranks))
        out[f"{way}/median_rank"] = float(np.floor(np.median(ranks)))
    recalls = [value for name, value in out.items() if "/R@" in name]
    return out | {"rsum": 100 * sum(recalls), "R-mean": sum(recalls) / 4}


def grouped_texts(records: Records) -> dict[tuple[Any, str], None]:
    """Different (group, text); a record without a group is a separate group."""
    groups = [i if group is None else group for i, (group, _) in enumerate(records)]
    return dict.fromkeys((g, t) for g, (_, ts) in zip(groups, records, strict=True) for t in ts)


def plain(records: Records) -> dict[str, float]:
    """The metrics of groups, whose equal texts count once."""
    groups = [i if group is None else group for i, (group, _) in enumerate(records)]
    images = [(group, embed_image(i)) for i, group in enumerate(groups)]
    texts = [(group, embed_text(text)) for group, text in grouped_texts(records)]
    return plain_metrics(images, texts, lambda image, text: image == text)


def evaluator(records: Records, group: str = "kind", devices: int = 1) -> Bound:
    part, topology = configs.Retrieval(group=group, recall_at=(1, 2)), TOPOLOGIES["euclidean"]
    return bound(part, Listed(records), SPECS, topology, InputEncoder(devices))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(records=DRAWN)
def test_groups_equal_sets_and_loops(records: Records) -> None:
    task: Any = evaluator(records)
    assert task.run({}) == pytest.approx(plain(records))
    counts = {"image": [len(records)], "text": [len(grouped_texts(records))]}
    assert task.context.encoder.encoded == counts


def test_groups_on_eight_devices_and_with_examples() -> None:
    captions = (("cat", "dog"), ("cat",), ("dog", "emu"), ("cat",))
    records: Records = [*zip("abab", captions, strict=True)]
    found, shown = evaluator(records, devices=8).examples({})
    assert found == pytest.approx(plain(records))
    to_text, to_image = shown["directions"]
    assert (to_text["queries"], to_text["answers"]) == (4, 4)  # a: cat, dog; b: cat; a: emu
    examples = {e["place"]: e for group in to_image["groups"] for e in group["examples"]}
    assert [examples[i]["query"]["text"] for i in range(4)] == ["cat", "dog", "cat", "emu"]
    for example in examples.values():
        kind = records[example["query"]["record"]][0]
        assert example["right_answers"] == 2
        for answer in example["answers"]:
            assert answer["right"] == (records[answer["record"]][0] == kind)


def test_encode_items_without_a_group() -> None:
    records: Records = [("a", ("cat", "dog")), ("a", ("cat",))]
    source = Listed(records)
    encoder = SourceEncoder(InputEncoder(), {})
    side = encode_items(encoder, source, "text", SPECS["text"])
    assert side.owners.tolist() == [0, 0, 1]
    assert side.items.tolist() == [[0, 0], [0, 1], [1, 0]]
    grouped = encode_items(encoder, source, "text", SPECS["text"], group_numbers(source, "kind"))
    assert grouped.owners.tolist() == [0, 0]
    assert grouped.items.tolist() == [[0, 0], [0, 1]]
    np.testing.assert_array_equal(grouped.embeddings, side.embeddings[:2])


def test_distinct_texts_per_group() -> None:
    source = Listed([("a", ("cat", "cat")), ("b", ("dog", "cat")), ("a", ("dog", "cat"))])
    found = distinct(source, SPECS["text"], group_numbers(source, "kind"))
    assert found.tolist() == [[0, 0], [1, 0], [1, 1], [2, 0]]


def test_records_without_a_group_are_separate_groups() -> None:
    class Broken(Listed):
        def value(self, index: int, column: str) -> Any:
            if index == 1:
                raise Damaged("record 1", "the line is cut")
            return self.records[index][0]

    values = ["", "a", None, float("nan"), 0, "0", "", 0.0, np.int64(7), 7, ("x", "y"), ("x", "y")]
    source = Broken([(value, ("cat",)) for value in (*values, "a")])
    assert group_numbers(source, "kind").tolist() == [0, 1, 2, 3, 4, 5, 6, 4, 7, 7, 8, 8, 9]


@pytest.mark.parametrize(
    ("group", "message"), [("kin", "no column 'kin'"), ("image", "group column 'image'")]
)
def test_bad_group_column_is_rejected_before_encoding(group: str, message: str) -> None:
    task: Any = evaluator([("a", ("cat",))], group)
    for call in (task.check, lambda: task.run({})):
        with pytest.raises(UserError, match=message):
            call()
    assert task.context.encoder.encoded == {}


def test_group_column_without_any_value_is_rejected() -> None:
    """Rows of JSON lines may differ: a misspelt column is missing in every row."""

    class Lines(Listed):
        def value(self, index: int, column: str) -> Any:
            raise Damaged(f"line {index}", f"there is no {column!r}")

    with pytest.raises(UserError, match="no record has a value in the group column 'kind'"):
        check_group(Lines([("a", ("cat",)), ("a", ("dog",))]), "kind")
    evaluator([(None, ("cat",)), ("a", ("dog",))]).check()
