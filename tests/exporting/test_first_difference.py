"""Certificates name the first layer that differs, if embeddings do.

The second test needs the libraries, see test_configs.py.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from big_retrieval.exporting import certificate as certificates
from big_retrieval.exporting.certificate import FAILED, Certificate
from big_retrieval.exporting.export import write
from big_retrieval.exporting.inputs import TEXTS
from big_retrieval.exporting.layers import ROWS
from big_retrieval.exporting.library import Answer, Job
from big_retrieval.io.manifest import sha256_file
from tests.exporting.test_export import CASES, WEIGHTS, model_of
from tests.interop.export_all import available

PYTHON = os.environ.get("BIG_RETRIEVAL_EXPORT_PYTHON", "")


REAL = (  # case, target, field whose encoder is changed
    ("BERT", "transformers", "text"),
    ("ViT", "transformers", "image"),
    ("ResNet", "transformers", "image"),
    ("CLIP", "transformers", "image"),
    ("dense", "sentence-transformers", "text"),
    ("SPLADE", "sentence-transformers", "text"),
    ("open_clip", "open_clip", "text"),
    ("open_clip", "torch", "text"),
    ("ResNet", "torch", "image"),
)


def stored(folder: Path, what: str) -> dict[str, np.ndarray]:
    with np.load(folder / certificates.STORED) as file:
        return {name.removeprefix(what): file[name] for name in file.files if what in name}


@pytest.mark.parametrize(
    ("rows", "layers", "told"),
    [
        (slice(None), {"embedding": 0.5}, "; what enters the first layer differs already (by 0.5"),
        (slice(None), {"1": 0.25}, "is layer 1, transformer.resblocks.1 in the library (by 0."),
        (slice(None), {"final": np.nan}, "; the first layer that differs is the norm behind the l"),
        (slice(None), {}, "; all layers agree, so what follows them differs: pooling, head or n"),
        (slice(None), None, "(1e-05 is allowed)"),  # modules have other names there
        (7, {}, "; not all inputs do, but for example input 7, 'café naïve über'"),
    ],
)
def test_what_a_certificate_says(
    whole: tuple[Path, Certificate], monkeypatch: Any, rows: Any, layers: Any, told: str
) -> None:
    """The library is one of ours: its embeddings and layers differ by given numbers."""
    folder, certificate = whole

    def ask(jobs: list[Job], python: str) -> list[Answer]:
        del python
        if not jobs:
            return []
        (job,) = jobs
        if "inside" not in job.request:
            embeddings = stored(folder, "embeddings/")
            embeddings["text"][rows] += 0.1
            return [Answer(embeddings)]
        assert job.inputs["text"].tolist() == [TEXTS[row] for row in ROWS]
        if layers is None:
            return [Answer({})]
        found = stored(folder, "layers/text/")
        return [Answer({name: x + layers.get(name, 0.0) for name, x in found.items()})]

    monkeypatch.setattr(certificates, "ask", ask)
    done = certificates.complete(certificate, folder, "python")
    assert done.status == FAILED
    assert done.reason.startswith("the embeddings of the field text differ by 0.1 (1e-05 is allow")
    assert told in done.reason
    assert layers is not None or done.reason.endswith(told)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Certificate]:
    """An export of open_clip's small model."""
    folder = tmp_path_factory.mktemp("open_clip")
    model = model_of("open_clip", folder)[1]
    return folder / "out", write(model, to="open_clip", out=folder / "out")


def with_wrong_weights(folder: Path, field: str, certificate: Certificate) -> Certificate:
    """Changes a matrix in layer 1 of a written export, as a wrong table of names would."""
    path = next(folder / name for name in WEIGHTS if (folder / name).is_file())
    arrays, place = load_file(path), dict(certificate.request["layers"][field])["1"]
    place = "encoder.layer.1" if place == "layers.1" else place  # ViT's files have older names
    found = (name for name, x in arrays.items() if x.ndim > 1)
    name = max(name for name in found if name.removeprefix("bert.").startswith(f"{place}."))
    arrays[name] = -arrays[name]
    save_file(arrays, path, metadata={"format": "pt"})
    files = {**certificate.files, path.name: sha256_file(path)}
    changed = dataclasses.replace(certificate, files=files)
    changed.write(folder)
    return changed


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="BIG_RETRIEVAL_EXPORT_PYTHON names no Python")
def test_the_libraries_layers(tmp_path: Path) -> None:
    written: list[tuple[str, str, Certificate, Path]] = []
    at_hand = [each for each in REAL if each[1] in available(PYTHON)]
    for case, to, field in at_hand:
        folder = tmp_path / to / case
        folder.mkdir(parents=True)
        model, out = model_of(case, folder)[1], folder / "out"
        certificate = write(model, to=to, out=out, fields=CASES[case].fields)
        written.append((case, field, with_wrong_weights(out, field, certificate), out))
    pairs = [(certificate, out) for _, _, certificate, out in written]
    for done, (case, field, certificate, out) in zip(
        certificates.complete_all(pairs, PYTHON), written, strict=True
    ):
        place = dict(certificate.request["layers"][field])["1"]
        told = f"; the first layer that differs is layer 1, {place} in the library (by "
        assert told in done.reason, (case, done.reason)
        assert json.loads((out / certificates.CERTIFICATE).read_text())["reason"] == done.reason
