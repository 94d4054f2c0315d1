"""Geometry of embeddings against loops."""

from typing import Any

import jax
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.config.checks import check
from big_retrieval.config.checks.evals import metrics_of
from big_retrieval.errors import UserError
from big_retrieval.evals.geometry import measure
from big_retrieval.similarity import TOPOLOGIES
from tests.evals.bound import PresetEncoder, bound
from tests.evals.test_retrieval import SOURCE, SPECS
from tests.helpers import lexical_texts, tiny

COUNT, M, N = 9, 3, 4


def random_embeddings(topology: str) -> dict[str, np.ndarray]:
    """Embeddings of similar pairs."""
    rng = np.random.default_rng(2)
    image = rng.normal(size=(COUNT, M, N))
    text = image + 0.3 * rng.normal(size=image.shape)
    project = TOPOLOGIES[topology].project
    both = {"text": text, "image": image}
    return {name: np.asarray(project(jax.numpy.asarray(x, "float32"))) for name, x in both.items()}


def plain_distance(topology: str, a: np.ndarray, b: np.ndarray) -> float:
    """Distance of two embeddings [M, N], as in Table 1 of the paper."""
    if topology == "euclidean":
        return float(np.linalg.norm(a - b))
    cosines = [float(u @ v) for u, v in zip(a, b, strict=True)]
    if topology == "geodesic":
        return float(np.sqrt(sum(np.arccos(np.clip(c, -1, 1)) ** 2 for c in cosines)))
    return -sum(cosines)


def plain(topology: str, text: np.ndarray, image: np.ndarray) -> dict[str, float]:
    text, image = text.astype(np.float64), image.astype(np.float64)
    d = np.array([[plain_distance(topology, i, t) for t in text] for i in image])
    pairs = [(i, j) for i in range(COUNT) for j in range(COUNT) if i != j]
    negatives = [d[i, j] for i, j in pairs]
    out = {"positive_distance": np.mean([d[i, i] for i in range(COUNT)])}
    out["positive_std"] = np.std([d[i, i] for i in range(COUNT)])
    out["negative_distance"], out["negative_std"] = np.mean(negatives), np.std(negatives)
    if topology not in ("euclidean", "geodesic"):  # half of the square distance
        d = np.array([[np.sum((i - t) ** 2) / 2 for t in text] for i in image])
    out["beyond_bound"] = np.mean([d[i, j] > d[i, i] + d[j, i] + d[j, j] for i, j in pairs])
    if topology not in ("oblique", "geodesic"):
        whole = {"text": text.reshape(COUNT, 1, -1), "image": image.reshape(COUNT, 1, -1)}
    else:
        whole = {"text": text, "image": image}
    unit = {name: x / np.linalg.norm(x, axis=2, keepdims=True) for name, x in whole.items()}
    apart = unit["text"] - unit["image"]
    out["alignment"] = np.mean([v @ v for row in apart for v in row])
    for name, x in unit.items():
        out[f"uniformity_{name}"] = np.mean(
            [
                np.log(np.mean([np.exp(-2 * np.sum((x[i, j] - x[k, j]) ** 2)) for i, k in pairs]))
                for j in range(x.shape[1])
            ]
        )
    for name, x in (("text", text), ("image", image)):
        values = np.sqrt(np.maximum(np.linalg.eigvalsh(_flat(x) @ _flat(x).T), 0))
        shares = values / values.sum()
        out[f"effective_rank_{name}"] = np.exp(-sum(p * np.log(p) for p in shares if p > 1e-12))
        centred = x - x.mean(axis=0)
        grams = [centred[:, j] @ centred[:, j].T for j in range(M)]
        out[f"token_correlation_{name}"] = np.mean(
            [
                np.sum(grams[j] * grams[k]) / (np.linalg.norm(grams[j]) * np.linalg.norm(grams[k]))
                for j in range(M)
                for k in range(j)
            ]
        )
    return {name: float(value) for name, value in out.items()}


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1)


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
def test_measure_equals_loops(topology: str) -> None:
    sides = random_embeddings(topology)
    found = measure(sides, TOPOLOGIES[topology])
    expected = plain(topology, **sides)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    metric = topology in ("euclidean", "geodesic")  # distances that keep the triangle inequality
    assert (found["beyond_bound"] == 0) == metric


def test_measure_per_sphere() -> None:
    sides = random_embeddings("oblique")
    found = measure(sides, TOPOLOGIES["oblique"], per_sphere=True)
    for name in ("alignment", "uniformity_text", "uniformity_image"):
        each = [found[f"sphere_{j}/{name}"] for j in range(M)]
        assert found[name] == pytest.approx(np.mean(each))
        assert len(set(each)) == M


def test_evaluator_measures_the_first_text_of_the_first_records() -> None:
    sides, part = random_embeddings("oblique"), configs.Geometry(count=6)
    topology = TOPOLOGIES["oblique"]
    task = bound(part, SOURCE, SPECS, topology, PresetEncoder(**sides))
    task.check()
    shown: list[Any] = []
    found = task.run({}, show=shown.append)
    assert found == measure({name: x[:6] for name, x in sides.items()}, topology)
    names = metrics_of(tiny(evals={"g": recipe.entry(part)}), "g")
    assert {f"geometry/g/{name}" for name in found} == set(names)
    shares = shown[0]["distances"]
    middles = np.convolve(shares["edges"], [0.5, 0.5], "valid")
    width = middles[1] - middles[0]
    for kind, count, name in (("positives", 6, "positive"), ("negatives", 30, "negative")):
        assert sum(shares[kind]) == count
        mean = np.average(middles, weights=shares[kind])
        assert mean == pytest.approx(found[f"{name}_distance"], abs=width / 2)


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        (configs.Geometry(query="image"), {}, "evals.g.query and .* both 'image'"),
        (configs.Geometry(count=1), {}, "evals.g.count is 1"),
        (configs.Geometry(query="query", document="document"), lexical_texts(), "is lexical"),
    ],
)
def test_check_rejects_keys(part: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(tiny(evals={"g": recipe.entry(part)}, **changes))
