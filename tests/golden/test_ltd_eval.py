"""Reference values of LTD's evaluation: recalls, Crisscrossed Captions and nDCG."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from big_retrieval.config import CaptionNdcg, CrisscrossedCaptions, Retrieval
from big_retrieval.evals.rankings import read_values
from tests.evals.captioned import evaluator, records, write_pairs

Case = Mapping[str, np.ndarray]
WAYS = {"i2t": "image_to_text", "t2i": "text_to_image"}
RECALLS = ("R@1", "R@5", "R@10")

pytestmark = pytest.mark.golden("ltd", "retrieval_eval.npz")


def measured(case: Case, part: Any, **more: Any) -> dict[str, float]:
    """The evaluator's numbers of the file's embeddings, in float64."""
    each = int(case["captions_per_image"])
    source = records([[f"{n} {k}" for k in range(each)] for n in range(len(case["images"]))])
    with jax.enable_x64(True):
        images, captions = (case[name].astype(np.float64) for name in ("images", "captions"))
        built = evaluator(part, source, image=images, text=captions)
        built.check()
        return built.run({}, **more)


def percent(found: dict[str, float], way: str) -> list[float]:
    return [100 * found[f"{WAYS[way]}/{name}"] for name in RECALLS]


def test_recalls_ranks_and_precision(case: Case) -> None:
    found = measured(case, Retrieval(chunk=16))
    for way, name in WAYS.items():
        ranks = [found[f"{name}/{key}"] for key in ("median_rank", "mean_rank")]
        np.testing.assert_allclose([*percent(found, way), *ranks], case[way], rtol=1e-12)
    np.testing.assert_allclose(found["rsum"], case["rsum"], rtol=1e-12)
    precision = found["image_to_text/R-precision"]
    np.testing.assert_allclose(precision, case["i2t_r_precision"], rtol=1e-5)


def test_crisscrossed_captions(case: Case, tmp_path: Path) -> None:
    mask = case["cxc_positive_mask"]
    pairs = [(1000 + caption, image, 5.0 if mask[image, caption] else 2.9)
             for image, caption in np.ndindex(*mask.shape)
             if caption // int(case["captions_per_image"]) != image]  # fmt: skip
    part = CrisscrossedCaptions(files=(write_pairs(tmp_path / "sits.csv", pairs),), chunk=16)
    found = measured(case, part)
    for way, name in WAYS.items():
        np.testing.assert_allclose(percent(found, way), case[f"cxc_{way}_recall"], rtol=1e-12)
        precision = found[f"{name}/R-precision"]
        np.testing.assert_allclose(precision, case[f"cxc_{way}_r_precision"], rtol=1e-5)


@pytest.mark.parametrize("headed", [False, True])
def test_ndcg(case: Case, tmp_path: Path, headed: bool) -> None:
    """Of files as TERN writes them, which are numbers alone, and of those of numpy.save."""
    files = []
    for name in ("rougeL", "spice"):
        path, rows = tmp_path / f"{name}.npy", case[f"relevance_{name}"]
        np.save(path, rows) if headed else path.write_bytes(rows.tobytes())
        files.append(f"{name}={path}")
    part = CaptionNdcg(relevance=tuple(files), depth=int(case["ndcg_rank"]), chunk=16)
    folder = tmp_path / "rankings" / "test"
    found = measured(case, part, rankings=folder)
    _, values = read_values(folder / "queries.csv")
    for name in ("rougeL", "spice"):
        metric = f"{name}/nDCG@{part.depth}"
        np.testing.assert_allclose(found[metric], case[f"ndcg_{name}_mean"], rtol=1e-5)
        np.testing.assert_allclose(values[metric], case[f"ndcg_{name}_per_query"], rtol=1e-5)
