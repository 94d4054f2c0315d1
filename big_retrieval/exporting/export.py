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
from big_retrieval.runtime.building import begin, give_name

log = logging.getLogger(__name__)
CODE = (".py", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")  # PyTorch's files may be pickles
TARGETS: dict[str, ExportTarget] = {
    name: pkgutil.resolve_name(f"{exporting.__name__}.{place}")(name)
    for name, place in exporting.TARGETS.items()
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
      license: license for the model card.

    Raises:
      UserError: the target cannot hold the model, the folder is not empty, a library that writes
        the files is missing, or embeddings differ. Only the last leaves a folder.
    """
    program = interpreter(python)
    written = write(model, to=to, out=out, fields=fields, python=python, license=license)
    done = _completed(written, Path(out), program)
    if done.status == UNVERIFIED:
        trust = " --trust-code" if _code_files(Path(out)) else ""
        log.warning(
            f"unverified: {done.reason}; to verify: big-retrieval export verify {out} "
            f"--python=PATH{trust}"
        )
    return done


def write(
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
    problem = _problem(target, subject)
    if problem is not None:
        raise UserError(f"--to={to} cannot hold {problem}; {_alternative(model, fields)}.")
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
      python: see `export`.
      trust_code: True to run Python files of the folder (torch, onnx, some sentence-transformers).

    Raises:
      UserError: not an export, changed files, a Python without the library, embeddings that
        differ, or code that is not trusted.
    """
    place = Path(folder)
    certificate = certificates.read(place)
    if (files := _code_files(place)) and not trust_code:
        raise UserError(
            f"Not verified: the comparison runs {', '.join(files)} of {place}. Whoever changes "
            f"code can also change its checksum in {certificates.CERTIFICATE}. If you know where "
            "the folder comes from, add --trust-code."
        )
    done = _completed(certificate, place, interpreter(python))
    if done.status == UNVERIFIED:
        raise UserError(f"Not verified: {place}: {done.reason}. Name another --python.")
    return done


def _code_files(folder: Path) -> list[str]:
    """Returns the files that libraries execute, whatever the certificate says of the target."""
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in CODE)
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def _completed(written: Certificate, folder: Path, python: str) -> Certificate:
    (done,) = certificates.complete([(written, folder)], python)
    path = folder / certificates.CERTIFICATE
    if done.status == FAILED:
        raise UserError(f"{done.reason}: {path} is marked as failed. Do not use the export.")
    for name, entry in done.fields.items() if done.status == VERIFIED else ():
        log.info(f"{name}: {done.to} differs by at most {entry['difference']:.1e}")
    return done


def _alternative(model: TrainedModel, fields: Sequence[str]) -> str:
    """Returns which other targets can hold a model, or the encoder of one of its fields."""
    if others := list(holding(model, fields)):
        return f"--to={' or '.join(others)} can"
    for name in fields or model.config.encoded:
        for other in holding(model, (name,)):
            return f"--field={name} --to={other} can hold that field's encoder"
    return "no target can, so use the run with big_retrieval.load"


def holding(model: TrainedModel, fields: Sequence[str] = ()) -> Iterator[str]:
    """Yields the names of the targets that can hold a model, or the encoders of some fields."""
    for name, target in TARGETS.items():
        try:
            subject = take_apart(model, fields, apart=target.apart)
        except UserError:  # fields of one encoder are read differently
            continue
        if _problem(target, subject) is None:
            yield name


def _problem(target: ExportTarget, subject: Exported) -> str | None:
    """Returns the first thing that a target cannot hold."""
    texts = text_problems(subject) if target.framed and "text" in subject.modalities else ()
    return next(itertools.chain(texts, target.problems(subject)), None)
