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
from big_retrieval.exporting import layers
from big_retrieval.exporting.inputs import COUNT, embeddings_of, inputs_of, of_field
from big_retrieval.exporting.layers import at_gate, difference_of
from big_retrieval.exporting.library import Answer, Job, ask
from big_retrieval.exporting.parts import Exported
from big_retrieval.inference.fingerprint import params_sha256, versions
from big_retrieval.inference.load import put_together
from big_retrieval.interop.files import read_json
from big_retrieval.interop.read import CERTIFICATE
from big_retrieval.io import durable
from big_retrieval.io.manifest import sha256_file, to_json
from big_retrieval.io.npy import read_npz
from big_retrieval.runtime.building import MARK

STORED = "certificate.npz"
TOLERANCE = 1e-5  # of float32
VERIFIED, UNVERIFIED, FAILED = "verified", "unverified", "failed"


@dataclass(frozen=True)
class Certificate:
    """What certificate.json says.

    Attributes:
      status: "verified", "unverified" or "failed".
      reason: why it is not verified; "": it is.
      to: the target's name.
      run: folder (the end of its path), config's and parameters' SHA-256 of the model.
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
        """Writes certificate.json into a folder."""
        durable.write_bytes(folder / CERTIFICATE, to_json(dataclasses.asdict(self)))


def begin(model: Exported, request: Mapping[str, Any], folder: Path) -> Certificate:
    """Stores inputs and our embeddings beside a written export.

    Args:
      model: that was exported.
      request: for the other process; with the target's name under "to".
      folder: of the export.
    """
    config = dataclasses.replace(model.config, dtype="float32")  # whatever the run was trained in
    own = put_together(model.model.folder, config, model.tokenizer, model.model.weights, COUNT)
    inputs = inputs_of(model)
    embeddings = embeddings_of(model, own, inputs)
    stored: dict[str, Any] = {f"inputs/{name}": values for name, values in inputs.items()}
    stored |= {f"embeddings/{name}": found for name, found in embeddings.items()}
    stored |= layers.stored(own, request["layers"], inputs)
    np.savez_compressed(folder / STORED, **stored)
    certificate = Certificate(
        status=UNVERIFIED,
        reason="the target library has not run yet",
        to=request["to"],
        run={
            "folder": "/".join(model.model.folder.parts[-3:]),  # RUN/checkpoints/STEP
            "config_sha256": _config_sha256(model),
            "params_sha256": params_sha256(model.model.weights),
        },
        versions={"ours": versions(), "theirs": {}},
        fields={
            name: {
                "inputs_sha256": _sha256(of_field(inputs, name)),
                "difference": None,
                "top_k": getattr(model.config.fields[name].head, "top_k", None),  # of a gate
            }
            for name in embeddings
        },
        tolerance=TOLERANCE,
        request=dict(request),
        files=_files(folder),
    )
    certificate.write(folder)
    return certificate


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
    """`complete` of several exports, in one process of the library; a second one if some differ."""
    jobs = [
        Job(folder, certificate.request, _stored(folder, "inputs"))
        for certificate, folder in exports
    ]
    answers = ask(jobs, python)
    done = [
        _compared(certificate, folder, answer)
        for (certificate, folder), answer in zip(exports, answers, strict=True)
    ]
    differing = [number for number, each in enumerate(done) if _differing_field(each)]
    insides = ask([_inside(done[number], jobs[number]) for number in differing], python)
    for number, inside in zip(differing, insides, strict=True):
        reason = _where(done[number], jobs[number], answers[number], inside)
        done[number] = dataclasses.replace(done[number], reason=done[number].reason + reason)
    for (before, folder), after in zip(exports, done, strict=True):
        if after.status != UNVERIFIED or before.status == UNVERIFIED:  # else it knows more already
            after.write(folder)
    return done


def _stored(folder: Path, what: str) -> dict[str, np.ndarray]:
    """What is stored of all fields: their "inputs" or our "embeddings" of them."""
    start = f"{what}/"
    stored = read_npz(folder / STORED, start)  # which reads what is asked for
    return {name.removeprefix(start): array for name, array in stored.items()}


def _compared(certificate: Certificate, folder: Path, answer: Answer) -> Certificate:
    """The certificate with what the library has computed."""
    ours, problem, status = _stored(folder, "embeddings"), answer.problem, VERIFIED
    if problem:
        status = UNVERIFIED if answer.missing else FAILED
    fields, limit, known = {}, certificate.tolerance, certificate.request.get("layers", {})
    for name in sorted(ours, key=lambda name: name not in known):  # the message is of the first
        top_k = certificate.fields[name].get("top_k")
        difference = difference_of(*at_gate(ours[name], answer.embeddings.get(name), top_k))
        fields[name] = {**certificate.fields[name], "difference": difference}
        if not problem and (difference is None or difference > limit):
            status = FAILED
            what = "cannot be compared" if difference is None else f"differ by {difference:.2g}"
            problem = f"the embeddings of the field {name} {what} ({limit:g} is allowed)"
    return dataclasses.replace(
        certificate,
        status=status,
        reason=problem,
        fields=fields,
        versions={**certificate.versions, "theirs": answer.versions},
    )


def _differing_field(certificate: Certificate) -> str:
    """A field whose embeddings differ and whose layers are known; "": there is none."""
    for name in certificate.request.get("layers", {}):
        difference = certificate.fields[name]["difference"]
        if difference is not None and difference > certificate.tolerance:
            return name
    return ""


def _inside(certificate: Certificate, job: Job) -> Job:
    """Asks for what the library's layers give."""
    field = _differing_field(certificate)
    inputs = {key: layers.rows_of(x) for key, x in of_field(job.inputs, field).items()}
    return dataclasses.replace(job, request={**job.request, "inside": True}, inputs=inputs)


def _where(certificate: Certificate, job: Job, answer: Answer, inside: Answer) -> str:
    """The rest of a reason: the first layer that differs; "": that is not known."""
    field, limit = _differing_field(certificate), certificate.tolerance
    ours, theirs = _stored(job.folder, "embeddings")[field], answer.embeddings[field]
    agreed = difference_of(layers.rows_of(ours), layers.rows_of(theirs))
    if agreed is not None and agreed <= limit:
        worst = int(np.abs(ours - theirs).max(1).argmax())
        texts = {name: x for name, x in job.inputs.items() if x.dtype.kind == "U"}
        shown = f", {str(texts[field][worst])[:40]!r}" if field in texts else ""
        return f"; not all inputs do, but for example input {worst}{shown}"
    own = _stored(job.folder, f"layers/{field}")
    pairs = certificate.request["layers"][field]
    # Of numbers inside a model, such as feature maps, rounding may be more than of its embeddings.
    limit = max(limit, certificate.fields[field]["difference"] / 100)
    first = layers.first_difference(pairs, own, inside.embeddings, limit)
    return f"; {first}" if first else ""
