"""Evaluation of sparse lexical fields against dense products; search modes by hand."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.data.fields.reader import stack
from big_retrieval.data.sources import TextRecords
from big_retrieval.data.synthetic.graded_scenes import GradedScenes
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.evals import class_scores as scoring
from big_retrieval.evals.class_scores import class_scores
from big_retrieval.evals.encoding import SourceEncoder
from big_retrieval.evals.positives import Positives
from big_retrieval.evals.rankings import read_values
from big_retrieval.evals.ranks import ranks
from big_retrieval.inference.encoder import Encoder
from big_retrieval.report.examples import has_matched
from big_retrieval.similarity import TOPOLOGIES
from big_retrieval.sparse.terms import Terms, terms_of
from big_retrieval.train.build import build_model
from tests.evals.bound import PresetEncoder, bound
from tests.evals.test_ranks import ENCODERS, plain
from tests.helpers import drawn, lexical_texts, tiny
from tests.readers import changed, image_reader, text_reader

SCENES = SceneRecords("test", size=16, count=9)
CAPTIONS = [text for n in range(9) for text in SCENES[n]["captions"]]
TOKENIZER = wordpiece_tokenizer(learn_wordpiece([*CAPTIONS, *CAPTIONS], 90))
COLUMNS = terms_of("words", TOKENIZER)
TEXT = text_reader("captions", length=20, tokenizer=TOKENIZER)
INNER = TOPOLOGIES["inner"]


def sparse(rows: Any) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array(np.asarray(rows, np.float32))


def bags(texts: list[str]) -> np.ndarray:
    """Bags of words [n, V] from the tokens' names."""
    out = np.zeros((len(texts), len(COLUMNS)), np.float32)
    ids, mask = TOKENIZER.encode(texts, TEXT.field.length)
    for row, tokens, present in zip(out, ids, mask, strict=True):
        for token in tokens[present].tolist():
            if (name := TOKENIZER.id_to_token(token)) in COLUMNS.words:
                row[COLUMNS.words.index(name)] = 1
    return out


def gated(dense: np.ndarray, top_k: int | None, bow: np.ndarray | None) -> np.ndarray:
    """E(x) by a sort of every row."""
    if top_k is None:
        return dense
    out = np.zeros_like(dense)
    for n, row in enumerate(dense):
        kept = np.argsort(-row, kind="stable")[:top_k].tolist()
        kept += [] if bow is None else np.flatnonzero(bow[n]).tolist()
        out[n, kept] = row[kept]
    return out


def integers(seed: int, *shape: int) -> np.ndarray:
    """Integers from 0 to 3, half of them 0: products are exact and often equal."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < 0.5, rng.integers(1, 4, shape), 0).astype(np.float32)


@pytest.mark.parametrize(
    ("top_k", "own", "devices"),
    [
        (None, False, 1),
        (3, True, 8),
        pytest.param(3, False, 1, marks=pytest.mark.slow),
        pytest.param(0, True, 1, marks=pytest.mark.slow),
    ],
)
def test_encoded_embeddings_are_the_gated_dense_ones(
    top_k: int | None, own: bool, devices: int
) -> None:
    config = tiny(batch_size=8, **lexical_texts(terms="words", top_k=top_k, keep_input_terms=own))
    mesh = parallel.make_mesh(config, jax.devices()[:devices])
    vocab = TOKENIZER.vocab_size
    parts = build_model(config, mesh, vocab_size=vocab, total_steps=1, words=TOKENIZER)
    params = drawn(parts.model, parts.model.example_inputs())["params"]
    texts = CAPTIONS[:19]
    encoder = Encoder(parts.model, mesh, 8)
    source = TextRecords(texts, column="captions")
    embeddings, records = SourceEncoder(encoder, params).encode(source, "query", TEXT)
    assert scipy.sparse.issparse(embeddings)
    np.testing.assert_array_equal(records, np.arange(19))
    assert encoder.terms("query") == COLUMNS
    dense = parts.model.apply({"params": params}, {"query": stack(TEXT, texts)})
    whole: Any = np.asarray(dense.embeddings["query"])[:, 0]  # type: ignore[union-attr]
    expected = gated(whole, top_k, bags(texts) if own else None)
    np.testing.assert_allclose(embeddings.toarray(), expected, rtol=1e-5, atol=1e-6)
    assert embeddings.nnz == np.count_nonzero(expected)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([2, 5, 64]), st.sampled_from([1, 8]))
def test_ranks_of_sparse_embeddings(seed: int, chunk: int, devices: int) -> None:
    queries, documents = integers(seed, 7, 5), integers(seed + 1, 12, 5)
    queries[2], documents[4] = 0, documents[5]
    rng = np.random.default_rng(seed)
    ids, owners = np.arange(7) % 4, rng.integers(0, 4, 12)
    owners[:4] = range(4)
    how: Any = {"score": INNER.score, "encoder": ENCODERS[devices], "chunk": chunk}
    positives = Positives(ids, owners)
    found = ranks(sparse(queries), sparse(documents), positives, **how)
    best, precision, ndcg = plain(queries @ documents.T, ids, owners)
    assert (found.best.tolist(), found.precision.tolist()) == (best, precision)
    np.testing.assert_allclose(found.ndcg, ndcg, rtol=1e-12)  # more than ten documents, with ties
    dense = ranks(queries[:, None], documents[:, None], positives, **how)
    np.testing.assert_array_equal(found, dense)


@pytest.mark.parametrize("each", [1, 3])
def test_class_scores_of_sparse_embeddings(each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images, prompts = integers(0, 6, 8), integers(1, 4 * each, 8)
    prompts[-each:] = prompts[:each]
    how: Any = {"topology": INNER, "encoder": ENCODERS[1]}
    monkeypatch.setattr(scoring, "CHUNK", 4)  # the last chunk is not full
    rows, blocks = zip(*class_scores(sparse(images), sparse(prompts), 4, **how), strict=True)
    assert rows == (slice(0, 4), slice(4, 6))
    found = np.concatenate(blocks)
    expected = (images @ prompts.T).reshape(6, 4, each).mean(2)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(found[:, 0], found[:, 3])
    dense = [x for _, x in class_scores(images[:, None], prompts[:, None], 4, **how)]
    np.testing.assert_allclose(found, np.concatenate(dense), rtol=1e-6)


@pytest.mark.parametrize("ensemble", ["scores", "embeddings"])
def test_modes_of_zero_shot(ensemble: Any) -> None:
    names, prompts = ("red", "blue", "green"), ("{} square", "a {} big circle")
    texts = [prompt.format(name) for name in names for prompt in prompts]
    own = bags(texts) / np.linalg.norm(bags(texts), axis=1, keepdims=True)
    text, image = integers(0, 6, len(COLUMNS)), integers(1, 9, len(COLUMNS))
    labels = np.arange(9) % 3
    source = Labelled(labels)
    task = configs.ZeroShot(
        label="kind", classes=names, prompts=prompts, ensemble=ensemble, modes=("bag", "top_k=2")
    )
    encoder = Preset(text=text, image=image)
    encoder.normalises = lambda field: True
    found = bound(task, source, {"image": IMAGE, "text": TEXT}, INNER, encoder).run({})
    modes = {"": (text, image), "bag/": (own, image)}
    modes["top_k=2/"] = gated(text, 2, bags(texts)), gated(image, 2, None)
    for mode, (rows, images) in modes.items():
        means = rows.reshape(3, 2, -1).mean(1)
        norms = np.linalg.norm(means, axis=1) if ensemble == "embeddings" else np.ones(3)
        scores = images @ (means / norms[:, None]).T
        label_scores = scores[np.arange(9), labels][:, None]
        assert found[f"{mode}accuracy"] == np.mean((scores >= label_scores - 1e-6).sum(1) == 1)
    assert len(set(found.values())) > 1


class Labelled(SceneRecords):
    """The scenes with their classes."""

    def __init__(self, labels: np.ndarray) -> None:
        super().__init__("test", size=16, count=len(labels))
        self.labels = labels.tolist()

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "kind": self.labels[index]}


class Preset(PresetEncoder):
    """An encoder with tables of lexical embeddings [n, V]."""

    def normalises(self, field: str) -> bool:
        return False

    def take_rows(self, field: str, records: np.ndarray, batches: list[Any]) -> Any:
        return sparse(super().take_rows(field, records, batches))

    def terms(self, field: str) -> Terms:
        return COLUMNS


IMAGE = image_reader("image", size=16)
MODES = ("bag", "top_k=2", "top_k=0/all", "top_k=all/1")


def test_modes_of_retrieval(tmp_path: Path) -> None:
    """A mode equals the plain evaluation of embeddings that are changed by hand."""
    text, image = integers(0, 45, len(COLUMNS)), integers(1, 9, len(COLUMNS))
    own = bags(CAPTIONS)
    changed = {
        "bag": (own, image),
        "top_k=2": (gated(text, 2, own), gated(image, 2, None)),
        "top_k=0/all": (gated(text, 0, own), image),
        "top_k=all/1": (text, gated(image, 1, None)),
    }
    task = configs.Retrieval(recall_at=(1, 3), modes=MODES)
    setup = SCENES, {"image": IMAGE, "text": TEXT}, INNER
    evaluator = bound(task, *setup, Preset(text=text, image=image))
    found = evaluator.run({}, rankings=tmp_path / "x")
    for way in ("image_to_text", "text_to_image"):
        for metric, values in read_values(tmp_path / f"x-{way}" / "queries.csv")[1].items():
            mode, _, name = metric.rpartition("/")
            path = "/".join(filter(None, (mode, way, name)))
            assert np.mean(values) == pytest.approx(found[path])
    plain_task = configs.Retrieval(recall_at=(1, 3))
    as_encoded = bound(plain_task, *setup, Preset(text=text, image=image)).run({})
    assert found == pytest.approx(found | as_encoded)
    for mode, (texts, images) in changed.items():
        expected = bound(plain_task, *setup, Preset(text=texts, image=images)).run({})
        del expected["words@5"]
        prefix = f"{mode}/"
        of_mode = {n.removeprefix(prefix): x for n, x in found.items() if n.startswith(prefix)}
        assert of_mode == pytest.approx(expected)
        assert of_mode != {name: as_encoded[name] for name in of_mode}, mode
    shares = []
    for n in range(9):
        words = {*np.flatnonzero(own[5 * n : 5 * n + 5].any(0)).tolist()}
        strongest = np.argsort(-image[n], kind="stable")[:5].tolist()
        shares.append(len(words & {*strongest}) / 5)
    assert found["words@5"] == pytest.approx(np.mean(shares))
    assert 0 < found["words@5"] < 1


SPECS: dict[str, Any] = {
    name: text_reader(name, side=side, length=20, tokenizer=TOKENIZER)
    for name, side in {"query": "query", "title": "document"}.items()
}


def test_modes_of_rankings() -> None:
    source = GradedScenes(split="in_domain", size=16, count=40).build()
    queries = [source.queries[n]["query"] for n in range(len(source.queries))]
    titles = [source.documents[n]["title"] for n in range(len(source.documents))]
    width = len(COLUMNS)
    query, title = integers(2, len(queries), width), integers(3, len(titles), width)
    own = bags(queries), bags(titles)
    changed = {
        "bag": (own[0], title),
        "binary": (query, own[1]),
        "top_k=2": (gated(query, 2, own[0]), gated(title, 2, own[1])),
        "top_k=all/0": (query, gated(title, 0, own[1])),
    }

    def run(embeddings: tuple[np.ndarray, np.ndarray], *modes: str) -> dict[str, float]:
        task = configs.Ranking(metrics=("nDCG@10", "MRR"), modes=modes)
        encoder = Preset(query=embeddings[0], title=embeddings[1])
        return bound(task, source, SPECS, INNER, encoder).run({})

    found = run((query, title), *changed)
    assert {n: found[n] for n in ("nDCG@10", "MRR")} == run((query, title))
    for mode, embeddings in changed.items():
        expected = run(embeddings)
        of_mode = {name: found[f"{mode}/{name}"] for name in expected}
        assert of_mode == pytest.approx(expected), mode
        assert of_mode != {name: found[name] for name in expected}, mode
    assert len(found) == 2 * (1 + len(changed))


def test_examples_of_rankings_show_the_words_that_matched() -> None:
    source = GradedScenes(split="in_domain", size=16, count=12).build()
    rng, width = np.random.default_rng(5), len(COLUMNS)
    rows = {"query": len(source.queries), "title": 12, "image": 12}
    embeddings = {name: rng.gamma(2, 1, (n, width)).astype(np.float32) for name, n in rows.items()}
    readers = SPECS | {"image": changed(IMAGE, side="document", weight=0.5)}
    task = configs.Ranking(metrics=("nDCG@10",))
    _, shown = bound(task, source, readers, INNER, Preset(**embeddings)).examples({})
    documents = (embeddings["title"] + 0.5 * embeddings["image"]) / 1.5
    examples = [x for group in shown["directions"][0]["groups"] for x in group["examples"]]
    answers = [(example["place"], answer) for example in examples for answer in example["answers"]]
    for query, answer in answers:
        products = embeddings["query"][query] * documents[answer["record"]]
        best = np.argsort(-products)[:5]
        assert [word for word, _ in answer["matched"]] == [COLUMNS.words[b] for b in best]
        shares = products[best] / products.sum()
        assert [x for _, x in answer["matched"]] == pytest.approx(shares, abs=1e-4)
        assert answer["score"] == pytest.approx(products.sum(), rel=1e-4)
    assert len(answers) > 20
    assert has_matched(shown)
