"""Writes a trained model as a folder that another library opens, with a certificate."""

import itertools
import logging
import pkgutil
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from big_retrieval import exporting
from big_retrieval.errors import UserError
from big_retrieval.exporting import certificate as certificates
from big_retrieval.exporting.card import write_card
from big_retrieval.exporting.certificate import FAILED, UNVERIFIED, VERIFIED, Certificate
from big_retrieval.exporting.library import interpreter
from big_retrieval.exporting.parts import Exported, take_apart
from big_retrieval.exporting.target import ExportTarget, text_problems
from big_retrieval.inference.load import TrainedModel
from big_retrieval.runtime.atomic_folder import begin, give_name

log = logging.getLogger(__name__)
CODE = (".py", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")  # PyTorch's files may be pickles
TARGETS: dict[str, ExportTarget] = {
    name: pkgutil.resolve_name(f"{exporting.__name__}.{path}")(name)
    for name, path in exporting.TARGETS.items()
}


def export(
    model: TrainedModel,
    *,
    to: str,
    out: str | Path,
    fields: Sequence[str] = (),
    python: str = "",
    license: str = "unknown",
) -> Certificate:
    """Writes a model for another library, and compares the library's embeddings with the model's.

    Args:
      model: result of `load` or `import_model`.
      to: a name of `exporting.TARGETS`, such as "transformers".
      out: the folder to write; new or empty.
      fields: fields whose encoders are exported; empty for all.
      python: interpreter of an environment with the library and PyTorch; empty for this one.
        Without the library, the certificate is "unverified"; ONNX files cannot be written.

    Raises:
      UserError: the target does not support the model, the folder is not empty, a library that
        writes the files is missing, or embeddings differ. Only the last error leaves a folder.
    """
    program = interpreter(python)
    written = write_export(model, to=to, out=out, fields=fields, python=python, license=license)
    completed = _complete(written, Path(out), program)
    if completed.status == UNVERIFIED:
        trust = " --trust-code" if _code_files(Path(out)) else ""
        log.warning(
            f"unverified: {completed.reason}; to verify: big-retrieval export verify {out} "
            f"--python=PATH{trust}"
        )
    return completed


def write_export(
    model: TrainedModel,
    *,
    to: str,
    out: str | Path,
    fields: Sequence[str] = (),
    python: str = "",
    license: str = "unknown",
) -> Certificate:
    """Writes the folder of `export`, with an "unverified" certificate."""
    if to not in TARGETS:
        raise UserError(f"Unknown target --to={to}. Targets: {', '.join(TARGETS)}.")
    target, folder = TARGETS[to], Path(out)
    subject = take_apart(model, fields, apart=target.apart)
    reason = _problem(target, subject)
    if reason is not None:
        raise UserError(f"--to={to} cannot hold {reason}; {_alternative(model, fields)}.")
    partial = begin(folder, certificates.CERTIFICATE)
    try:
        target.write(subject, partial)
        target.convert(subject, partial, interpreter(python))
        write_card(subject, target, license, partial)
        request = {"to": to, "packages": list(target.packages), **target.computes(subject)}
        written = certificates.begin(subject, request, partial)
    except BaseException:
        shutil.rmtree(partial)
        raise
    give_name(partial, folder)
    log.info(f"written to {folder}")
    return written


def verify(folder: str | Path, *, python: str = "", trust_code: bool = False) -> Certificate:
    """Compares the embeddings of an export's library with the embeddings in its folder.

    Args:
      python: interpreter of an environment with the library; empty for this one.
      trust_code: True to run Python files of the folder (torch, onnx, some sentence-transformers).

    Raises:
      UserError: not an export, changed files, a Python without the library, embeddings that
        differ, or code that is not trusted.
    """
    folder = Path(folder)
    certificate = certificates.read(folder)
    if (files := _code_files(folder)) and not trust_code:
        raise UserError(
            f"Not verified: the comparison runs {', '.join(files)} of {folder}. Whoever changes "
            f"code can also change its checksum in {certificates.CERTIFICATE}. If you know where "
            "the folder comes from, add --trust-code."
        )
    completed = _complete(certificate, folder, interpreter(python))
    if completed.status == UNVERIFIED:
        raise UserError(f"Not verified: {folder}: {completed.reason}. Name another --python.")
    return completed


def _code_files(folder: Path) -> list[str]:
    """Returns the files that libraries may execute, for any target."""
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in CODE)
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def _complete(written: Certificate, folder: Path, python: str) -> Certificate:
    (completed,) = certificates.complete([(written, folder)], python)
    path = folder / certificates.CERTIFICATE
    if completed.status == FAILED:
        raise UserError(f"{completed.reason}: {path} is marked as failed. Do not use the export.")
    for name, entry in completed.fields.items() if completed.status == VERIFIED else ():
        log.info(f"{name}: {completed.to} differs by at most {entry['difference']:.1e}")
    return completed


def _alternative(model: TrainedModel, fields: Sequence[str]) -> str:
    """Returns advice: targets that support the model, or one field's encoder."""
    if targets := list(holding(model, fields)):
        return f"--to={' or '.join(targets)} can"
    for name in fields or model.config.encoded:
        for other in holding(model, (name,)):
            return f"--field={name} --to={other} can hold that field's encoder"
    return "no target can, so use the run with big_retrieval.load"


def holding(model: TrainedModel, fields: Sequence[str] = ()) -> Iterator[str]:
    """Yields the names of the targets that support a model, or the encoders of some fields."""
    for name, target in TARGETS.items():
        try:
            subject = take_apart(model, fields, apart=target.apart)
        except UserError:  # fields of one encoder have different keys
            continue
        if _problem(target, subject) is None:
            yield name


def _problem(target: ExportTarget, subject: Exported) -> str | None:
    """Returns the first property of a model that a target does not support; None without one."""
    texts = text_problems(subject) if target.framed and "text" in subject.modalities else ()
    return next(itertools.chain(texts, target.problems(subject)), None)
