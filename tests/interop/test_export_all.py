"""All exports, compared with the installed libraries; see export_all.py."""

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import pytest

from big_retrieval.exporting.export import write_export
from big_retrieval.inference.fingerprint import params_sha256
from big_retrieval.interop.model import import_model
from tests.exporting.test_configs import NAMES, local, random_model, with_random_weights
from tests.interop import export_all

TO = "sentence-transformers"
SAVED_AGAIN = """\
import sys
from sentence_transformers import SparseEncoder

texts = ["two red dogs", "", "a small circle"]
model = SparseEncoder(sys.argv[1], trust_remote_code=True)
model.save_pretrained(sys.argv[2])
again = SparseEncoder(sys.argv[2], trust_remote_code=True)
one, two = (each.encode(texts, convert_to_tensor=True).to_dense() for each in (model, again))
assert (one == two).all()
names = open(sys.argv[1] + "/terms.txt").read().split("\\n")
for row, terms in zip(one, model.decode(model.encode(texts))):
    assert {term for term, _ in terms} == {names[i] for i in row.nonzero().flatten()}
again.train()
out = again(again.preprocess(texts))["sentence_embedding"]
out.sum().backward()
assert all(each.grad is not None for each in again.parameters())
"""


def forms(name: str) -> set[str]:
    """Strings and switches of a config's towers and heads, on which its exports depend."""
    c = local(name)
    parts = [*c.towers.values(), *(field.head for field in c.encoded.values())]
    keys = {
        f"{part.type}.{key}={value}"
        for part in parts
        for key, value in vars(part).items()
        if isinstance(value, str | bool | None)
    }
    modalities = sorted(field.modality for field in c.encoded.values())
    return keys | {c.topology, c.tokenizer.type, " ".join(modalities)}


def distinct_configs() -> list[str]:
    """The configs with a form that no earlier config has; configs with most forms come first."""
    names, seen = list[str](), set[str]()
    for name in sorted(NAMES, key=lambda name: -len(forms(name))):
        if not forms(name) <= seen:
            names.append(name)
            seen |= forms(name)
    return names


@pytest.mark.slow
def test_libraries_compute_the_same(tmp_path: Path) -> None:
    """One test, since starting the libraries takes seconds."""
    targets = export_all.available(export_all.PYTHON)
    if not targets:
        pytest.skip(f"{export_all.PYTHON} has no PyTorch")
    exports = list(export_all.write_all(tmp_path, targets, export_all.PYTHON, distinct_configs()))
    done = export_all.verified(exports, export_all.PYTHON)
    assert export_all.problems(done, export_all.PYTHON) == []
    for each in done:
        if each.certificate.to == "torch":
            _check_import(each)


def _check_import(exported: export_all.Exported) -> None:
    """Checks that an import has the parameters of the model bit for bit."""
    again = import_model(str(exported.folder))
    weights = {name: part for name, part in again.weights.items() if part}
    given = random_model(exported.model).weights
    assert params_sha256(weights) == params_sha256({k: x for k, x in given.items() if x})


@pytest.mark.slow
def test_libraries_compute_the_same_for_keys_of_no_small_config(tmp_path: Path) -> None:
    if "torch" not in export_all.available(export_all.PYTHON):
        pytest.skip(f"{export_all.PYTHON} has no PyTorch")
    more: dict[str, dict[str, dict[str, Any]]] = {
        "ltd_f30k": {
            "image": {"bottleneck": False, "blocks": (1, 2)},
            "text": {"read": "mean"},
        },
        "ltd_vsrn": {"regions": {"normalise_regions": False}},
    }
    exports = []
    for name, towers in more.items():
        config = local(name)
        parts: dict[str, Any] = {**config.towers}
        for key, keys in towers.items():
            parts[key] = dataclasses.replace(parts[key], **keys)
        fields: dict[str, Any] = {**config.fields}
        for key, field in fields.items():
            if field.head.type == "mlp":
                head = dataclasses.replace(field.head, hidden=24, batch_norm=True)
                fields[key] = dataclasses.replace(field, head=head)
        config = dataclasses.replace(config, towers=parts, fields=fields)
        out = tmp_path / name
        written = write_export(with_random_weights(config, name), to="torch", out=out)
        exports.append(export_all.Exported(name, "", out, written))
    done = export_all.verified(exports, export_all.PYTHON)
    assert export_all.problems(done, export_all.PYTHON) == []


@pytest.mark.slow
def test_sentence_transformers_saves_and_trains_lexical_exports(tmp_path: Path) -> None:
    if TO not in export_all.available(export_all.PYTHON):
        pytest.skip(f"{export_all.PYTHON} has no sentence-transformers")
    write_export(random_model("scenes_vdr"), to=TO, out=tmp_path / "out", fields=("text",))
    args = [export_all.PYTHON, "-c", SAVED_AGAIN, str(tmp_path / "out"), str(tmp_path / "again")]
    done = subprocess.run(args, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
