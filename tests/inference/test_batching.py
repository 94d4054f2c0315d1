"""Batches of a trained model: little padding, few programs, the same embeddings."""

import itertools
import math
from collections.abc import Iterable, Iterator

import jax
import numpy as np
import pytest
import scipy.sparse

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.data.build import make_readers
from big_retrieval.data.pipeline import eval_batches
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.evals.encoding import SourceEncoder
from big_retrieval.inference.batching import (
    BATCH,
    MAX_PROGRAMS,
    SEVERAL,
    Batching,
    InOrder,
    Shape,
    regrouped,
    steps,
)
from big_retrieval.inference.encoder import Encoder
from big_retrieval.inference.load import TrainedModel
from big_retrieval.train.build import untrained
from tests.helpers import tiny

CPU = Batching(64, 1, cpu=True)
NONE: frozenset[Shape] = frozenset()


def test_steps_are_four_per_octave() -> None:
    assert steps(77, 4) == [8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 77]
    assert steps(64, 1) == [8, 16, 32, 64]
    assert steps(5, 4) == [5]


def _cost(shapes: Iterable[Shape], known: frozenset[Shape], price: float) -> float:
    shapes = list(shapes)
    computed = sum(shape.rows * shape.length + BATCH for shape in shapes)
    return computed + price * len(set(shapes) - known)


@pytest.mark.parametrize("price", [0, 30, 200, 5000])
@pytest.mark.parametrize("known", [frozenset(), frozenset({Shape(4, 16), Shape(32, 20)})])
def test_shapes_are_cheapest(known: frozenset[Shape], price: int) -> None:
    """Compares with all choices of lengths, and of large and small batches per length."""
    grid, counts = [8, 12, 16, 20], np.random.default_rng(0).integers(1, 18, 75)
    batching = Batching(32, 1, cpu=True)

    def choices(length: int, texts: int) -> Iterator[list[Shape]]:
        for large, small in itertools.product((1, 4, 32), repeat=2):
            full = texts // large
            remaining = -(-(texts - full * large) // small)
            yield [Shape(large, length)] * full + [Shape(small, length)] * remaining

    minimum = math.inf
    for subset in itertools.chain(*(itertools.combinations(grid[:-1], n) for n in range(4))):
        lengths = [*subset, grid[-1]]
        texts = np.diff([0, *(int((counts <= length).sum()) for length in lengths)])
        parts = [choices(*pair) for pair in zip(lengths, texts.tolist(), strict=True) if pair[1]]
        for plan in itertools.product(*parts):
            minimum = min(minimum, _cost(itertools.chain(*plan), known, price))
    cost, shapes = batching._cheapest(counts, grid, known, price)
    assert cost == minimum
    assert cost == _cost([x for times, x in shapes for _ in range(times)], known, price)


def test_number_of_programs_is_bounded() -> None:
    rng, known = np.random.default_rng(1), frozenset[Shape]()
    for longest in (20, 200, 60, 500, 300):
        known |= set(CPU.shapes(rng.integers(1, longest, 40_000), 512, known))
    assert 8 < len(known) <= MAX_PROGRAMS + 2
    alone = {*itertools.chain(*(CPU.shapes(np.array([n]), 512, NONE) for n in range(1, 513)))}
    assert alone == {Shape(1, 2**power) for power in range(3, 10)}


def test_many_calls_of_few_texts_share_programs() -> None:
    rng, programs, tokens, computed = np.random.default_rng(2), set[Shape](), 0, 0
    for texts in np.exp(rng.uniform(0, np.log(300), 200)).astype(int):
        counts = np.clip(rng.lognormal(2.6, 0.35, texts).astype(int), 5, 40)
        shapes = CPU.shapes(counts, 256, NONE)
        assert sum(shape.rows for shape in shapes) >= texts
        programs |= set(shapes)
        tokens += counts.sum()
        computed += sum(shape.rows * shape.length for shape in shapes)
    assert len(programs) <= 24
    assert computed < 1.7 * tokens


def test_few_texts_have_batches_of_few_rows() -> None:
    def shapes(*counts: int) -> list[tuple[int, ...]]:
        return [tuple(shape) for shape in CPU.shapes(np.array(counts), 64, NONE)]

    assert shapes(9) == [(1, 16)]
    assert shapes(9, 30, 8, 12) == [(4, 32)]
    assert shapes(*[10] * 15) == [(4, 12)] * 4
    assert shapes(*[10] * 64, 30) == [(1, 32), (64, 12)]
    assert shapes(*[10] * 200, *[50] * 40) == [(4, 56)] * 10 + [(64, 12)] * 3 + [(4, 12)] * 2


@pytest.mark.parametrize("longest", [77, 256, 512])
def test_eight_texts_need_only_programs_of_equal_lengths(longest: int) -> None:
    """The demo compiles these programs when it starts."""
    rng, alike = np.random.default_rng(3), set[Shape]()
    for length in steps(longest, 1):
        alike |= {*CPU.shapes(np.array([length]), longest, NONE)}
        alike |= {*CPU.shapes(np.full(SEVERAL, length), longest, NONE)}
    for _ in range(300):
        counts = rng.integers(1, rng.integers(2, longest + 1), rng.integers(1, SEVERAL + 1))
        assert alike >= {*CPU.shapes(counts, longest, NONE)}


def test_rows_depend_on_device_and_values() -> None:
    assert [CPU.image_rows(images) for images in (1, 2, 5, 100)] == [1, 4, 8, 8]
    assert CPU.image_rows(100, side=112) == min(32, CPU.max_rows)
    assert set(Batching(64, 8, cpu=True).shapes(np.full(99, 256), 256, NONE)) == {(8, 256)}
    accelerator = Batching(64, 1, cpu=False)
    assert accelerator.image_rows(100) == 64
    assert accelerator.shapes(np.repeat([3, 17, 30], 40), 77, NONE) == [(64, 32), (64, 32)]
    assert accelerator.shapes(np.array([3, 17, 30]), 77, NONE) == [(4, 32)]
    assert accelerator.shapes(np.repeat([3, 30], 64), 77, NONE) == [(64, 32), (64, 8)]
    assert accelerator.shapes(np.array([3] * 64 + [60]), 77, NONE) == [(64, 64), (64, 8)]


@pytest.mark.parametrize("valid", [2000, 1999, 1])
def test_every_text_is_in_one_batch(valid: int) -> None:
    field = configs.TextField(length=40)
    counts = np.random.default_rng(2).integers(0, 41, 2000)
    mask = np.arange(40) < counts[:, None]
    ids = np.where(mask, np.arange(2000)[:, None], -1)
    block = {
        "text": {"ids": ids, "mask": mask},
        "record": np.arange(2000) + 7,
        "valid": np.arange(2000) < valid,
    }
    seen, padded = [], 0
    for batch in regrouped([block], "text", field, CPU, cut=True):
        arrays, used = batch["text"], batch["valid"]
        padded += arrays["ids"].size
        indices = batch["record"][used] - 7
        seen += indices.tolist()
        np.testing.assert_array_equal(arrays["mask"][used].sum(1), counts[indices])
        width = arrays["ids"].shape[1]
        np.testing.assert_array_equal(arrays["ids"][used], ids[indices][:, :width])
    assert sorted(seen) == list(range(valid))
    if valid > 1:
        assert padded < 2000 * 30
    (whole,) = {x["text"]["ids"].shape[1] for x in regrouped([block], "text", field, CPU, False)}
    assert whole == 40


@pytest.fixture(scope="module")
def dense() -> TrainedModel:
    return untrained(tiny(), batch_size=16)


def test_embeddings_do_not_depend_on_other_texts(dense: TrainedModel) -> None:
    texts = ["", *SceneRecords("test", count=40).captions(), "red", "a " * 50]
    whole = dense.encode_texts(texts)
    alone = np.concatenate([dense.encode_texts([text]) for text in texts[:12]])
    np.testing.assert_allclose(whole[:12], alone, atol=1e-6)
    backwards = dense.encode_texts(texts[::-1])[::-1]
    np.testing.assert_allclose(backwards, whole, atol=1e-6)
    assert not np.allclose(whole[1], whole[2], atol=1e-3)


def test_call_gives_same_bits_after_other_calls(dense: TrainedModel) -> None:
    texts = list(SceneRecords("test", count=30).captions())
    first = dense.encode_texts(texts)
    dense.encode_texts([text[: 3 + i % 9] for i, text in enumerate(texts)])
    np.testing.assert_array_equal(dense.encode_texts(texts), first)


@pytest.mark.parametrize("name", ["text", "image"])
def test_encode_keeps_order_on_any_devices(dense: TrainedModel, name: str) -> None:
    reader = make_readers(dense.config, dense.tokenizer)[name]
    source, weights = SceneRecords("test", count=30), jax.device_get(dense.weights)
    one = Encoder(dense.encoder._model, parallel.local_mesh(jax.devices()[:1]), 1)
    rows = [*eval_batches(source, {name: reader}, field=name, batch_size=1)]
    expected = np.concatenate([one.encode_batch(weights, name, row) for row in rows])
    for devices in (1, 8):
        mesh = parallel.local_mesh(jax.devices()[:devices])
        encoder = SourceEncoder(Encoder(dense.encoder._model, mesh, 16), weights)
        embeddings, records = encoder.encode(source, name, reader)
        np.testing.assert_array_equal(records, [int(row["record"][0]) for row in rows])
        np.testing.assert_allclose(embeddings, expected, atol=1e-6)


def test_in_order_leaves_missing_values_out() -> None:
    rows = np.arange(5, dtype=np.float32)[:, None, None]
    for convert in (np.asarray, lambda x: scipy.sparse.csr_array(x[:, 0])):
        encoded = InOrder(5)
        for indices in ([4, 1], [0, 2]):
            encoded.put(convert(rows[indices]), np.array(indices))
        assert encoded.embeddings().sum(axis=-1).ravel().tolist() == [0, 1, 2, 4]
        assert np.flatnonzero(encoded.present).tolist() == [0, 1, 2, 4]
