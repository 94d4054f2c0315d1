"""Certificates of exports, which record if another library computes the same embeddings.

An export has 16 inputs per field and their embeddings (`certificate.npz`), so that the comparison
needs only the folder and a Python with the library.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.config import schema
from big_retrieval.errors import UserError
from big_retrieval.exporting.inputs import COUNT, arrays_of_field, embeddings_of, inputs_of
from big_retrieval.exporting.library import Answer, Job, ask
from big_retrieval.exporting.parts import Exported
from big_retrieval.inference.fingerprint import params_sha256, versions
from big_retrieval.inference.load import put_together
from big_retrieval.interop.files import read_json
from big_retrieval.interop.read import CERTIFICATE
from big_retrieval.io import durable
from big_retrieval.io.manifest import sha256_file, to_json
from big_retrieval.io.npy import read_npz
from big_retrieval.runtime.atomic_folder import MARK

STORED = "certificate.npz"
TOLERANCE = 1e-5  # of float32
VERIFIED, UNVERIFIED, FAILED = "verified", "unverified", "failed"


@dataclass(frozen=True)
class Certificate:
    """Contents of certificate.json."""

    status: str  # "verified", "unverified" or "failed"
    reason: str  # empty if verified
    to: str  # name of the target
    run: Mapping[str, str]  # end of the model's path, SHA-256 of config and parameters
    versions: Mapping[str, Any]  # "ours" for this package, "theirs" for the target
    # Field -> SHA-256 of its inputs, `top_k` of its gate, largest difference (None if unverified).
    fields: Mapping[str, Mapping[str, Any]]
    tolerance: float  # largest difference that passes
    request: Mapping[str, Any]  # for the library's process
    files: Mapping[str, str]  # name -> SHA-256, of all files except the model card

    def write(self, folder: Path) -> None:
        """Writes certificate.json."""
        durable.write_bytes(folder / CERTIFICATE, to_json(dataclasses.asdict(self)))


def begin(model: Exported, request: Mapping[str, Any], folder: Path) -> Certificate:
    """Stores inputs, embeddings and an unverified certificate in the folder of an export."""
    config = dataclasses.replace(model.config, dtype="float32")
    reference = put_together(
        model.model.folder, config, model.tokenizer, model.model.weights, COUNT
    )
    inputs = inputs_of(model)
    embeddings = embeddings_of(model, reference, inputs)
    arrays: dict[str, Any] = {f"inputs/{name}": values for name, values in inputs.items()}
    arrays |= {f"embeddings/{name}": values for name, values in embeddings.items()}
    np.savez_compressed(folder / STORED, **arrays)
    config_json = to_json(schema.to_plain(model.config))
    certificate = Certificate(
        status=UNVERIFIED,
        reason="the target library has not run yet",
        to=request["to"],
        run={
            "folder": "/".join(model.model.folder.parts[-3:]),  # RUN/checkpoints/STEP
            "config_sha256": hashlib.sha256(config_json).hexdigest(),
            "params_sha256": params_sha256(model.model.weights),
        },
        versions={"ours": versions(), "theirs": {}},
        fields={
            name: {
                "inputs_sha256": _inputs_sha256(arrays_of_field(inputs, name)),
                "difference": None,
                "top_k": getattr(model.config.fields[name].head, "top_k", None),
            }
            for name in embeddings
        },
        tolerance=TOLERANCE,
        request=dict(request),
        files=_files(folder),
    )
    certificate.write(folder)
    return certificate


def _inputs_sha256(inputs: Mapping[str, np.ndarray]) -> str:
    """Returns the digest of a field's inputs; each text is followed by a zero."""
    digest = hashlib.sha256()
    for values in inputs.values():
        if values.dtype.kind == "U":
            digest.update("".join(f"{text}\0" for text in values).encode())
        else:
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def _files(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    unlisted = (CERTIFICATE, "README.md", MARK)
    return {name: sha256_file(path) for name, path in names.items() if name not in unlisted}


def read(folder: Path) -> Certificate:
    """Reads the certificate of an export, and checks that the folder has the exported files.

    Raises:
      UserError: not an export, a damaged certificate, or a file that is missing or differs.
    """
    path = folder / CERTIFICATE
    if not path.is_file():
        raise UserError(f"Not an export: {folder} has no {CERTIFICATE}.")
    try:
        certificate = Certificate(**read_json(path))
        files = {str(name): str(digest) for name, digest in certificate.files.items()}
        fields = {name: dict(entry) for name, entry in certificate.fields.items()}
        request = dict(certificate.request)
    except (TypeError, ValueError, AttributeError):
        raise UserError(f"Damaged certificate: {path}. Export again.") from None
    for name, digest in files.items():
        if not (folder / name).is_file():
            raise UserError(f"{folder} lacks {name}, which its {CERTIFICATE} lists. Export again.")
        if sha256_file(folder / name) != digest:
            raise UserError(
                f"{folder / name} is not the exported file: its SHA-256 differs from {CERTIFICATE}."
                " Export again."
            )
    return dataclasses.replace(certificate, fields=fields, request=request)


def complete(exports: Sequence[tuple[Certificate, Path]], python: str) -> list[Certificate]:
    """Runs the libraries of exports in one process, and writes the completed certificates."""
    jobs = [
        Job(folder, certificate.request, _stored(folder, "inputs"))
        for certificate, folder in exports
    ]
    completed = []
    for (before, folder), answer in zip(exports, ask(jobs, python), strict=True):
        after = _compared(before, folder, answer)
        if after.status != UNVERIFIED or before.status == UNVERIFIED:  # else keep the old one
            after.write(folder)
        completed.append(after)
    return completed


def _stored(folder: Path, group: str) -> dict[str, np.ndarray]:
    """Returns the stored "inputs" or "embeddings" of all fields."""
    arrays = read_npz(folder / STORED, f"{group}/")
    return {name.removeprefix(f"{group}/"): array for name, array in arrays.items()}


def _compared(certificate: Certificate, folder: Path, answer: Answer) -> Certificate:
    """Returns the certificate with the result of the library."""
    reason, status, limit = answer.problem, VERIFIED, certificate.tolerance
    if reason:
        status = UNVERIFIED if answer.missing else FAILED
    fields = {}
    for name, expected in _stored(folder, "embeddings").items():
        top_k = certificate.fields[name].get("top_k")
        difference = difference_of(*at_gate(expected, answer.embeddings.get(name), top_k))
        fields[name] = {**certificate.fields[name], "difference": difference}
        if not reason and (difference is None or difference > limit):
            status = FAILED
            result = "cannot be compared" if difference is None else f"differ by {difference:.2g}"
            reason = f"the embeddings of the field {name} {result} ({limit:g} is allowed)"
    return dataclasses.replace(
        certificate,
        status=status,
        reason=reason,
        fields=fields,
        versions={**certificate.versions, "theirs": answer.versions},
    )


def at_gate(
    ours: np.ndarray, other: np.ndarray | None, top_k: int | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns gated embeddings [n, V], comparable even if rounding changed the selected terms.

    A term that only one side keeps gets, on the other side, the smallest of the `top_k` values.
    Both values differ only by rounding, unless something is wrong.
    """
    if not top_k or other is None or other.shape != ours.shape or top_k > ours.shape[1]:
        return ours, other
    weakest = (np.sort(x, axis=1)[:, -top_k, None] for x in (ours, other))
    pairs = zip((ours, other), (other, ours), weakest, strict=True)
    one, two = (np.where((x == 0) & (y != 0), least, x) for x, y, least in pairs)
    return one, two


def difference_of(ours: np.ndarray, other: np.ndarray | None) -> float | None:
    """Returns the largest difference, divided by the largest value if it is above 1.

    None if `other` is missing, shapes differ, or a value is not finite.
    """
    if other is None or other.shape != ours.shape:
        return None
    difference = float(np.max(np.abs(ours - other)) / max(1.0, float(np.max(np.abs(ours)))))
    return difference if np.isfinite(difference) else None
