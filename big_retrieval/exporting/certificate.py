"""The certificate of an export: that another library computes our embeddings, and how nearly.

The folder keeps 16 inputs for each field and our embeddings of them (`certificate.npz`), so that
the comparison needs nothing but the folder and a Python that has the library.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.errors import UserError
from big_retrieval.exporting.library import Answer, Job, ask
from big_retrieval.exporting.parts import Exported
from big_retrieval.inference.encoder import concatenate
from big_retrieval.inference.fingerprint import params_sha256, versions
from big_retrieval.inference.load import TrainedModel, put_together
from big_retrieval.interop.files import read_json
from big_retrieval.interop.source import below
from big_retrieval.io import durable
from big_retrieval.io.manifest import sha256_file, to_json
from big_retrieval.runtime.building import MARK

CERTIFICATE, STORED = "certificate.json", "certificate.npz"
TOLERANCE = 1e-5  # of float32
VERIFIED, UNVERIFIED, FAILED = "verified", "unverified", "failed"
COUNT = 16  # inputs of a field
TEXTS = (
    "",
    "a",
    "red",
    "A small red circle left of a big blue star.",
    "Two dogs, playing!",
    "UPPER case and lower case, 3.14 and 1,000,000",
    "what is the capital of france?",
    "caf\u00e9 na\u00efve \u00fcber",
    "\u4eca\u5929\u306e\u5929\u6c17",
    "\u0441\u043e\u0431\u0430\u043a\u0430 \u0431\u0435\u0436\u0438\u0442",
    "\u03bf \u03c3\u03ba\u03cd\u03bb\u03bf\u03c2",
    "\u0915\u0941\u0924\u094d\u0924\u093e",
    "\U0001f600 \U0001f415",
    "antidisestablishmentarianism",
    "one two three four five six seven eight nine ten " * 4,
    "the quick brown fox jumps over the lazy dog and runs away through the long grass " * 20,
)


@dataclass(frozen=True)
class Certificate:
    """What certificate.json says.

    Attributes:
      status: "verified", "unverified" or "failed".
      reason: why it is not verified; "": it is.
      to: the target's name.
      run: folder, config's and parameters' SHA-256 of the model.
      versions: of our software under "ours", of the target's under "theirs" once it has run.
      fields: field -> SHA-256 of its inputs, and the largest difference, None before it is known.
      tolerance: the largest difference that passes.
      request: what the other process is told.
      files: name -> SHA-256, of all other files of the folder but the model card.
    """

    status: str
    reason: str
    to: str
    run: Mapping[str, str]
    versions: Mapping[str, Any]
    fields: Mapping[str, Mapping[str, Any]]
    tolerance: float
    request: Mapping[str, Any]
    files: Mapping[str, str]

    def write(self, folder: Path) -> None:
        durable.write_bytes(folder / CERTIFICATE, to_json(dataclasses.asdict(self)))


def inputs_of(model: Exported) -> dict[str, np.ndarray]:
    """The inputs by field: texts, or images uint8 [16, S, S, 3].

    Of fields of another kind, random arrays [16, ...] by the names `field/array`.
    """
    found: dict[str, np.ndarray] = {}
    for part in model.encodings:
        for name, field in part.fields.items():
            if field.modality == "text":
                found[name] = np.array(TEXTS)
            elif field.modality == "image":
                found[name] = _images(field.size)
            else:
                rng = np.random.default_rng(0)
                for key, (shape, dtype) in field.shapes().items():
                    # Between 0 and 1, as features of detectors and boxes are; 0 of whole numbers.
                    found[f"{name}/{key}"] = rng.random((COUNT, *shape)).astype(dtype)
    return found


def _of_field(arrays: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """The arrays of `inputs_of` that are of one field."""
    return {key: x for key, x in arrays.items() if key.partition("/")[0] == name}


def _images(size: int) -> np.ndarray:
    """Random images uint8 [16, size, size, 3], from single colours to noise in every pixel."""
    rng = np.random.default_rng(0)
    images = []
    for number in range(COUNT):
        cells = max(1, min(size, 2 ** (number // 2)))
        coarse = rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
        rows = np.arange(size) * cells // size
        images.append(coarse[rows][:, rows])
    return np.stack(images)


def begin(model: Exported, request: Mapping[str, Any], folder: Path) -> Certificate:
    """Stores inputs and our embeddings beside a written export.

    Args:
      model: that was exported.
      request: for the other process; with the target's name under "to".
      folder: of the export.
    """
    inputs = inputs_of(model)
    embeddings = _embeddings(model, inputs)
    stored: dict[str, Any] = {f"inputs/{name}": values for name, values in inputs.items()}
    stored |= {f"embeddings/{name}": found for name, found in embeddings.items()}
    np.savez_compressed(folder / STORED, **stored)
    certificate = Certificate(
        status=UNVERIFIED,
        reason="the target library has not run yet",
        to=request["to"],
        run={
            "folder": str(model.model.folder),
            "config_sha256": _config_sha256(model),
            "params_sha256": params_sha256(model.model.weights),
        },
        versions={"ours": versions(), "theirs": {}},
        fields={
            name: {"inputs_sha256": _sha256(_of_field(inputs, name)), "difference": None}
            for name in embeddings
        },
        tolerance=TOLERANCE,
        request=dict(request),
        files=_files(folder),
    )
    certificate.write(folder)
    return certificate


def _embeddings(model: Exported, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Ours of the inputs by field, [16, M * N], in float32 whatever the run was trained in."""
    config = dataclasses.replace(model.config, dtype="float32")
    own = put_together(model.model.folder, config, model.tokenizer, model.model.weights, COUNT)
    embeddings: dict[str, np.ndarray] = {}
    for part in model.encodings:
        done: dict[str, np.ndarray] = {}  # by what stands before a text: else fields are alike
        for name, field in part.fields.items():
            prefix = part.prompts().get(name, "")
            if prefix not in done:
                if field.modality == "text":
                    found: Any = own.encode_texts(TEXTS, name)
                elif field.modality == "image":
                    found = own.encode_images(list(inputs[name]), name)
                else:
                    found = _of_arrays(own, name, _of_field(inputs, name))
                dense = found.toarray() if hasattr(found, "toarray") else found
                done[prefix] = np.asarray(dense, np.float32).reshape(COUNT, -1)
            embeddings[name] = done[prefix]
    return embeddings


def _of_arrays(model: TrainedModel, field: str, inputs: Mapping[str, np.ndarray]) -> Any:
    """Embeddings of a field's arrays as they are."""
    arrays = {key.partition("/")[2]: x for key, x in inputs.items()}
    size, found = model.encoder.batch_size, []
    for start in range(0, COUNT, size):
        rows = np.arange(start, start + size)
        batch = {field: {name: x[rows % COUNT] for name, x in arrays.items()}}
        more = {"record": rows, "valid": rows < COUNT}
        found.append(model.encoder.embeddings(model.weights, field, [{**batch, **more}])[0])
    return concatenate(found)


def _config_sha256(model: Exported) -> str:
    from big_retrieval.config import schema

    return hashlib.sha256(to_json(schema.to_plain(model.config))).hexdigest()


def _sha256(inputs: Mapping[str, np.ndarray]) -> str:
    """Of a field's inputs: the bytes of arrays, or texts with a zero behind each."""
    digest = hashlib.sha256()
    for values in inputs.values():
        if values.dtype.kind == "U":
            digest.update("".join(f"{text}\0" for text in values).encode())
        else:
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def _files(folder: Path) -> dict[str, str]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in found}
    others = (CERTIFICATE, "README.md", MARK)
    return {name: sha256_file(path) for name, path in names.items() if name not in others}


def read(folder: Path) -> Certificate:
    """The certificate of an export whose files are those that were written.

    Raises:
      UserError: no export, a damaged certificate, or a file that is missing or another.
    """
    path = folder / CERTIFICATE
    if not path.is_file():
        raise UserError(f"{folder} has no {CERTIFICATE}: give a folder that an export wrote whole.")
    try:
        found = Certificate(**read_json(path))
        files = {str(name): str(digest) for name, digest in found.files.items()}
        fields = {name: dict(entry) for name, entry in found.fields.items()}
        found = dataclasses.replace(found, fields=fields, request=dict(found.request))
    except (TypeError, ValueError, AttributeError):
        raise UserError(f"{path} is no certificate of an export; export again.") from None
    for name, digest in files.items():
        if not (folder / name).is_file():
            raise UserError(f"{folder} lacks {name}, which its {CERTIFICATE} lists; export again.")
        if sha256_file(folder / name) != digest:
            raise UserError(
                f"{folder / name} is not the file that was exported (its SHA-256 is not that of "
                f"{CERTIFICATE}): the certificate says nothing of it; export again."
            )
    return found


def complete(certificate: Certificate, folder: Path, python: str) -> Certificate:
    """Runs the target library, compares, and writes the certificate anew.

    Args:
      certificate: of `begin` or `read`.
      folder: of the export.
      python: of `library.interpreter`.
    """
    return complete_all([(certificate, folder)], python)[0]


def complete_all(exports: Sequence[tuple[Certificate, Path]], python: str) -> list[Certificate]:
    """`complete` of several exports, in one process of the library."""
    jobs = [
        Job(folder, certificate.request, _stored(folder, "inputs"))
        for certificate, folder in exports
    ]
    answers = ask(jobs, python)
    return [
        _completed(certificate, folder, answer)
        for (certificate, folder), answer in zip(exports, answers, strict=True)
    ]


def _stored(folder: Path, what: str) -> dict[str, np.ndarray]:
    """What is stored of all fields: their "inputs" or our "embeddings" of them."""
    with np.load(folder / STORED, allow_pickle=False) as file:
        return below({name: file[name] for name in file.files}, f"{what}/")


def _completed(certificate: Certificate, folder: Path, answer: Answer) -> Certificate:
    """The certificate with what the library has computed, written."""
    ours, problem, status = _stored(folder, "embeddings"), answer.problem, VERIFIED
    if problem:
        status = UNVERIFIED if answer.missing else FAILED
    fields, limit = {}, certificate.tolerance
    for name, entry in certificate.fields.items():
        difference = difference_of(ours[name], answer.embeddings.get(name))
        fields[name] = {**entry, "difference": difference}
        if not problem and (difference is None or difference > limit):
            status = FAILED
            what = "cannot be compared" if difference is None else f"differ by {difference:.2g}"
            problem = f"the embeddings of the field {name} {what} ({limit:g} is allowed)"
    done = dataclasses.replace(
        certificate,
        status=status,
        reason=problem,
        fields=fields,
        versions={**certificate.versions, "theirs": answer.versions},
    )
    if status != UNVERIFIED or certificate.status == UNVERIFIED:  # else it knows more already
        done.write(folder)
    return done


def difference_of(ours: np.ndarray, other: np.ndarray | None) -> float | None:
    """The largest difference, by the largest value where that is above 1.

    None: there is nothing to compare, or other shapes, or no numbers.
    """
    if other is None or other.shape != ours.shape:
        return None
    found = float(np.max(np.abs(ours - other)) / max(1.0, float(np.max(np.abs(ours)))))
    return found if np.isfinite(found) else None
