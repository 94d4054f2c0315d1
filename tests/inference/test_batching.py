"""Batches of a trained model: little padding, few programs, the same embeddings."""

import io
import itertools
from pathlib import Path

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.inference.batching import (
    MOST,
    PRICE,
    Batching,
    cheapest,
    regrouped,
    steps,
)
from big_retrieval.inference.load import TrainedModel
from big_retrieval.runtime import progress
from big_retrieval.train.start import untrained
from tests.helpers import lexical_texts, tiny

CPU = Batching(64, 1, cpu=True)


def test_lengths_are_four_an_octave() -> None:
    assert steps(77, 4) == [8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 77]
    assert steps(64, 1) == [8, 16, 32, 64]
    assert steps(5, 4) == [5]


@pytest.mark.parametrize("price", [0, 3, 40, 1000])
def test_no_other_lengths_cost_less(price: float) -> None:
    """Against all subsets of the grid."""
    grid, counts = [4, 8, 12, 16, 24], np.random.default_rng(0).integers(1, 14, 60)
    known = frozenset({16})

    def cost(lengths: tuple[int, ...]) -> float:
        padded = sum(min(x for x in lengths if x >= count) for count in counts)
        return padded + price * len(set(lengths) - known)

    subsets = itertools.chain(*(itertools.combinations(grid, n) for n in range(1, 6)))
    least = min(cost(chosen) for chosen in subsets if chosen[-1] >= counts.max())
    assert cost(cheapest(counts, grid, known, price)) == least


def test_programs_are_few_however_many_texts() -> None:
    rng, known = np.random.default_rng(1), frozenset[int]()
    for longest in (20, 200, 60, 500):
        known |= set(CPU.lengths(rng.integers(1, longest, 40_000), 512, known))
    assert 8 < len(known) <= MOST + 1
    assert set(CPU.lengths(np.array([512]), 512, known)) <= known | {512}
    few = {CPU.lengths(np.array([count]), 512, frozenset()) for count in range(1, 513)}
    assert len(few) == 7  # powers of two for a text alone


def test_a_program_must_pay() -> None:
    one = np.full(PRICE // 4 - 1, 12)  # 4 tokens each with the next length
    assert CPU.lengths(np.append(one, 16), 64, frozenset()) == (16,)
    assert CPU.lengths(np.append(np.tile(one, 2), 16), 64, frozenset()) == (12, 16)
    assert CPU.lengths(np.append(one, 16), 64, frozenset({12})) == (12, 16)


def test_rows() -> None:
    assert [CPU.text_rows(length, 1000) for length in (8, 16, 24, 256, 4096)] == [64, 64, 42, 4, 1]
    assert [CPU.text_rows(16, texts) for texts in (1, 2, 8, 9)] == [1, 8, 8, 64]
    assert [CPU.image_rows(images) for images in (1, 2, 100)] == [1, 8, 8]
    assert Batching(64, 8, cpu=True).text_rows(256, 1000) == 8  # one a device at least
    accelerator = Batching(64, 1, cpu=False)
    assert [accelerator.text_rows(length, 1000) for length in (8, 256)] == [64, 64]
    assert accelerator.image_rows(100) == 64
    assert accelerator.lengths(np.array([3, 17, 30]), 77, frozenset()) == (8, 32)


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
        places = batch["record"][used] - 7
        seen += places.tolist()
        np.testing.assert_array_equal(arrays["mask"][used].sum(1), counts[places])
        width = arrays["ids"].shape[1]
        np.testing.assert_array_equal(arrays["ids"][used], ids[places][:, :width])
    assert sorted(seen) == list(range(valid))
    if valid > 1:
        assert padded < 2000 * 30
    (whole,) = {x["text"]["ids"].shape[1] for x in regrouped([block], "text", field, CPU, False)}
    assert whole == 40


@pytest.fixture(scope="module")
def dense() -> TrainedModel:
    return untrained(tiny(), batch_size=16)


def test_embeddings_do_not_depend_on_company(dense: TrainedModel) -> None:
    """One by one, all at once, and as evaluations batch them; an empty text among them."""
    texts = ["", *SceneRecords("test", count=40).captions(), "red", "a " * 50]
    whole = dense.encode_texts(texts)
    alone = np.concatenate([dense.encode_texts([text]) for text in texts[:12]])
    np.testing.assert_allclose(whole[:12], alone, atol=1e-6)
    backwards = dense.encode_texts(texts[::-1])[::-1]
    np.testing.assert_array_equal(backwards.shape, whole.shape)
    np.testing.assert_allclose(backwards, whole, atol=1e-6)
    assert not np.allclose(whole[1], whole[2], atol=1e-3)


def test_the_same_call_gives_the_same_bits_whatever_came_before(dense: TrainedModel) -> None:
    texts = list(SceneRecords("test", count=30).captions())
    first = dense.encode_texts(texts)
    dense.encode_texts([text[: 3 + i % 9] for i, text in enumerate(texts)])
    np.testing.assert_array_equal(dense.encode_texts(texts), first)


@pytest.mark.slow
def test_one_device_is_as_eight(dense: TrainedModel) -> None:
    import jax

    from big_retrieval import parallel
    from big_retrieval.inference.encoder import Encoder
    from big_retrieval.inference.load import any_mesh
    from big_retrieval.models.towers import make_model

    assert dense.encoder.batching.groups == jax.local_device_count() > 1
    mesh = parallel.make_mesh(any_mesh(dense.config), jax.local_devices()[:1])
    model = make_model(dense.config, dense.tokenizer.vocab_size, dense.tokenizer)
    weights = jax.device_put(jax.device_get(dense.weights), parallel.replicated(mesh))
    encoder = Encoder(model, mesh, 16)
    alone = TrainedModel(Path(), dense.config, dense.tokenizer, weights, encoder)
    texts = list(SceneRecords("test", count=20).captions())
    np.testing.assert_allclose(alone.encode_texts(texts), dense.encode_texts(texts), atol=1e-6)
    images = [SceneRecords("test", count=9)[i]["image"] for i in range(9)]
    found = dense.encode_images(images)
    np.testing.assert_allclose(alone.encode_images(images), found, atol=1e-6)
    np.testing.assert_allclose(alone.encode_images(images[3:4]), found[3:4], atol=1e-6)


@pytest.mark.slow
def test_lexical_rows_come_back_in_their_order() -> None:
    model = untrained(tiny(**lexical_texts()), batch_size=16)
    texts = [*SceneRecords("test", count=20).captions(), "red", ""]
    field = next(iter(model.config.encoded))
    whole = model.encode_texts(texts, field).toarray()
    for place in (0, 7, 20, 21):
        alone = model.encode_texts([texts[place]], field).toarray()
        np.testing.assert_allclose(whole[place : place + 1], alone, atol=1e-5)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("wanted", "stream", "long", "said"),
    [
        (None, _Terminal, True, True),
        (None, _Terminal, False, False),
        (None, io.StringIO, True, False),
        (True, io.StringIO, False, True),
        (False, _Terminal, True, False),
    ],
)
def test_progress_is_shown_of_long_work_on_terminals(
    wanted: bool | None, stream: type, long: bool, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0 if long else 1000.0)
    out = stream()
    with progress.ProgressCounter.of_call("texts", 3, wanted, out) as counter:
        counter.add(2)
        counter.add(1)
    assert bool(out.getvalue()) == said
    if said:
        assert "3 texts in" in out.getvalue()
    if said and long:
        assert "2 of 3 texts" in out.getvalue()
