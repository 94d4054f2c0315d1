"""Evaluation of lexical fields, sparse, against dense products; ways to search by hand."""

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
from tests.evals.bound import bound
from tests.evals.preset import PresetEncoder
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


def bags(texts: list[str], binary: bool = True) -> np.ndarray:
    """Bags of words [n, V] from the tokens' names."""
    out = np.zeros((len(texts), len(COLUMNS)), np.float32)
    ids, mask = TOKENIZER.encode(texts, TEXT.field.length)
    for row, own, present in zip(out, ids, mask, strict=True):
        for number in own[present].tolist():
            if (name := TOKENIZER.id_to_token(number)) in COLUMNS.words:
                row[COLUMNS.words.index(name)] += 1
    return np.minimum(out, 1) if binary else out


def gated(dense: np.ndarray, top_k: int | None, own: np.ndarray | None) -> np.ndarray:
    """E(x) by a sort of every row."""
    if top_k is None:
        return dense
    out = np.zeros_like(dense)
    for n, row in enumerate(dense):
        kept = np.argsort(-row, kind="stable")[:top_k].tolist()
        kept += [] if own is None else np.flatnonzero(own[n]).tolist()
        out[n, kept] = row[kept]
    return out


def integers(seed: int, *shape: int) -> np.ndarray:
    """Not negative, half of them 0, so that products are exact and often alike."""
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
    """Of more texts than a batch holds, the last batch padded."""
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
    """Ties count against the model, also where nothing is shared."""
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
    """The mean over the prompts of a class; classes of the same prompts score exactly alike."""
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
    """Prompts as bags of words, or both sides with fewer terms; means of norm 1."""
    names, prompts = ("red", "blue", "green"), ("{} square", "a {} big circle")
    texts = [prompt.format(name) for name in names for prompt in prompts]
    own = bags(texts) / np.linalg.norm(bags(texts), axis=1, keepdims=True)
    text, image = integers(0, 6, len(COLUMNS)), integers(1, 9, len(COLUMNS))
    labels = np.arange(9) % 3
    source = Labelled(labels)
    task = configs.ZeroShot(
        label="kind", classes=names, prompts=prompts, ensemble=ensemble, modes=("bag", "top_k=2")
    )
    how: Any = (source, {"image": IMAGE, "text": TEXT}, INNER)
    found = bound(task, *how, Preset(normed=True, text=text, image=image)).run({})
    ways = {"": (text, image), "bag/": (own, image)}
    ways["top_k=2/"] = gated(text, 2, bags(texts)), gated(image, 2, None)
    for mode, (rows, images) in ways.items():
        means = rows.reshape(3, 2, -1).mean(1)
        norms = np.linalg.norm(means, axis=1) if ensemble == "embeddings" else np.ones(3)
        scores = images @ (means / norms[:, None]).T
        right = scores[np.arange(9), labels][:, None]
        assert found[f"{mode}accuracy"] == np.mean((scores >= right - 1e-6).sum(1) == 1)
    assert len(set(found.values())) > 1


class Labelled(SceneRecords):
    """The scenes, with a class each."""

    def __init__(self, labels: np.ndarray) -> None:
        super().__init__("test", size=16, count=len(labels))
        self.labels = labels.tolist()

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "kind": self.labels[index]}


class Preset(PresetEncoder):
    """An encoder with lexical embeddings that are known, one row a text or image in their order."""

    def __init__(self, *, normed: bool = False, **table: np.ndarray) -> None:
        mesh = parallel.make_mesh(tiny(batch_size=8), jax.devices()[:1])
        super().__init__(None, mesh, 8)  # type: ignore
        self.table, self.normed = table, normed

    def normalises(self, field: str) -> bool:
        del field
        return self.normed

    def embeddings(self, weights: Any, field: str, batches: Any) -> Any:
        del weights
        records = np.concatenate([batch["record"][batch["valid"]] for batch in batches])
        return sparse(self.table[field]), records

    def terms(self, field: str) -> Terms:
        assert field in self.table
        return COLUMNS


IMAGE = image_reader("image", size=16)
MODES = ("bag", "top_k=2", "top_k=0/all", "top_k=all/1")


def test_ways_to_search_of_retrieval(tmp_path: Path) -> None:
    """Every way is the plain evaluation of embeddings that are changed by hand."""
    text, image = integers(0, 45, len(COLUMNS)), integers(1, 9, len(COLUMNS))
    own = bags(CAPTIONS)
    changed = {
        "bag": (own, image),
        "top_k=2": (gated(text, 2, own), gated(image, 2, None)),
        "top_k=0/all": (gated(text, 0, own), image),
        "top_k=all/1": (text, gated(image, 1, None)),
    }
    task = configs.Retrieval(recall_at=(1, 3), modes=MODES)
    how = SCENES, {"image": IMAGE, "text": TEXT}, INNER
    asked = bound(task, *how, Preset(text=text, image=image))
    found = asked.run({}, rankings=tmp_path / "x")
    for way in ("image_to_text", "text_to_image"):
        for metric, each in read_values(tmp_path / f"x-{way}" / "queries.csv")[1].items():
            mode, _, name = metric.rpartition("/")
            assert np.mean(each) == pytest.approx(found["/".join(filter(None, (mode, way, name)))])
    plain_task = configs.Retrieval(recall_at=(1, 3))
    whole = bound(plain_task, *how, Preset(text=text, image=image)).run({})
    assert found == pytest.approx(found | whole)
    for mode, (texts, images) in changed.items():
        wanted = bound(plain_task, *how, Preset(text=texts, image=images)).run({})
        del wanted["words@5"]
        ours = {n.removeprefix(f"{mode}/"): x for n, x in found.items() if n.startswith(f"{mode}/")}
        assert ours == pytest.approx(wanted)
        assert ours != {name: whole[name] for name in ours}, mode
    shares = []
    for n in range(9):
        words = {*np.flatnonzero(own[5 * n : 5 * n + 5].any(0)).tolist()}
        strongest = np.argsort(-image[n], kind="stable")[:5].tolist()
        shares.append(len(words & {*strongest}) / 5)
    assert found["words@5"] == pytest.approx(np.mean(shares))
    assert 0 < found["words@5"] < 1


def test_images_that_say_what_their_texts_say() -> None:
    image = np.stack([bags(CAPTIONS[5 * n : 5 * n + 5], False).sum(0) for n in range(9)])
    text = bags(CAPTIONS)
    task = bound(
        configs.Retrieval(modes=("bag",)), SCENES, {"image": IMAGE, "text": TEXT}, INNER,
        Preset(text=text, image=image),
    )  # fmt: skip
    found = task.run({})
    assert found["words@5"] == 1
    for name, value in found.items():
        if name.startswith("bag/"):
            assert value == found[name.removeprefix("bag/")]


FIELDS: dict[str, Any] = {
    "query": configs.TextField(column="query"),
    "title": configs.TextField(side="document", column="title"),
}
SPECS = {
    name: text_reader(name, side=field.side, length=20, tokenizer=TOKENIZER)
    for name, field in FIELDS.items()
}


def test_ways_to_search_of_rankings() -> None:
    """The same of judged pairs, where both sides have words."""
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
        wanted = run(embeddings)
        ours = {name: found[f"{mode}/{name}"] for name in wanted}
        assert ours == pytest.approx(wanted), mode
        assert ours != {name: found[name] for name in wanted}, mode
    assert len(found) == 2 * (1 + len(changed))


def test_examples_of_rankings_show_the_words_that_matched() -> None:
    """Of documents as they are ranked: two fields by their weights, of which one may be missing."""
    source = GradedScenes(split="in_domain", size=16, count=12).build()
    rng, width = np.random.default_rng(5), len(COLUMNS)
    rows = {"query": len(source.queries), "title": 12, "image": 12}
    embeddings = {name: rng.gamma(2, 1, (n, width)).astype(np.float32) for name, n in rows.items()}
    readers = SPECS | {"image": changed(IMAGE, side="document", weight=0.5)}
    task = configs.Ranking(metrics=("nDCG@10",))
    _, shown = bound(task, source, readers, INNER, Preset(**embeddings)).examples({})
    documents = (embeddings["title"] + 0.5 * embeddings["image"]) / 1.5
    seen = 0
    for group in shown["directions"][0]["groups"]:
        for example in group["examples"]:
            for answer in example["answers"]:
                products = embeddings["query"][example["place"]] * documents[answer["record"]]
                best = np.argsort(-products)[:5]
                assert [word for word, _ in answer["matched"]] == [COLUMNS.words[b] for b in best]
                wanted = products[best] / products.sum()
                assert [x for _, x in answer["matched"]] == pytest.approx(wanted, abs=1e-4)
                assert answer["score"] == pytest.approx(products.sum(), rel=1e-4)
                seen += 1
    assert seen > 20
    assert has_matched(shown)
