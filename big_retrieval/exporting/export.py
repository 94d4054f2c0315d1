"""From a trained model to a folder that another library opens, with a certificate."""

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
    """Writes a model for another library, and compares its embeddings with ours.

    Args:
      model: of `load` or `import_model`.
      to: a name of `exporting.TARGETS`, such as "transformers".
      out: the folder to write; new or empty.
      fields: those whose encoder is exported; (): all of the model's.
      python: the interpreter of an environment that has the library with PyTorch; "": this one.
        Where the library is missing, the export is written and its certificate is "unverified";
        but ONNX files cannot be written without PyTorch, onnx and onnxscript.
      license: for the model card.

    Returns:
      The certificate.

    Raises:
      UserError: the target cannot hold the model, the folder holds something else, a library that
        writes the files is missing, or the library gives other embeddings; of these only the last
        leaves a folder.
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
    """The first half of `export`: writes the folder, whose certificate is "unverified"."""
    if to not in TARGETS:
        raise UserError(f"--to is {to!r}; known: {', '.join(TARGETS)}.")
    target, folder = TARGETS[to], Path(out)
    subject = take_apart(model, fields, apart=target.apart)
    problem = _problem(target, subject)
    if problem is not None:
        raise UserError(f"--to={to} cannot hold {problem}; {_instead(model, fields)}.")
    partial = begin(folder, certificates.CERTIFICATE)
    try:
        target.write(subject, partial)
        target.convert(subject, partial, interpreter(python))
        write_card(subject, target, license, partial)
        request = {
            "to": to,
            "packages": list(target.packages),
            "layers": target.layers(subject),
            **target.computes(subject),
        }
        written = certificates.begin(subject, request, partial)
    except BaseException:
        shutil.rmtree(partial)
        raise
    give_name(partial, folder)
    log.info(f"written to {folder}")
    return written


def verify(folder: str | Path, *, python: str = "", trust_code: bool = False) -> Certificate:
    """Compares the embeddings of an export's library with those that are stored in the folder.

    Args:
      folder: of `export`.
      python: as in `export`.
      trust_code: run Python files of the folder, which folders for torch and onnx have, and some
        for sentence-transformers.

    Returns:
      The certificate, which is written, too.

    Raises:
      UserError: no whole export, files that are not those that were exported, a Python without the
        library, other embeddings, or code that is not trusted.
    """
    place = Path(folder)
    certificate = certificates.read(place)
    if (files := _code_files(place)) and not trust_code:
        raise UserError(
            f"Not verified: the comparison runs {', '.join(files)} of {place}. Whoever changes "
            f"code can also change its checksum in {certificates.CERTIFICATE}. If you know where "
            "the folder comes from, add --trust-code."
        )
    program = interpreter(python)
    done = _completed(certificate, place, program)
    if done.status == UNVERIFIED:
        raise UserError(f"{place} was not compared: {done.reason}; name another as --python.")
    return done


def _code_files(folder: Path) -> list[str]:
    """Files of an export that libraries execute, whatever its certificate says of its target."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in CODE)
    return sorted(path.relative_to(folder).as_posix() for path in found)


def _completed(written: Certificate, folder: Path, python: str) -> Certificate:
    done = certificates.complete(written, folder, python)
    path = folder / certificates.CERTIFICATE
    if done.status == FAILED:
        raise UserError(f"{done.reason}: {path} is marked as failed; do not use the export.")
    for name, entry in done.fields.items() if done.status == VERIFIED else ():
        log.info(f"{name}: {done.to} differs by {entry['difference']:.1e} at most")
    return done


def _instead(model: TrainedModel, fields: Sequence[str]) -> str:
    """What can be done with a model that a target cannot hold."""
    if others := list(holding(model, fields)):
        return f"--to={' or '.join(others)} can"
    for name in fields or model.config.encoded:
        for other in holding(model, (name,)):
            return f"--field={name} --to={other} can hold that field's encoder"
    return "no target can, so use the run with big_retrieval.load"


def holding(model: TrainedModel, fields: Sequence[str] = ()) -> Iterator[str]:
    """Names of the targets that can hold a model.

    Args:
      model: of `load` or `import_model`.
      fields: see `export`.
    """
    for name, target in TARGETS.items():
        try:
            subject = take_apart(model, fields, apart=target.apart)
        except UserError:  # fields of one encoder are read differently
            continue
        if _problem(target, subject) is None:
            yield name


def _problem(target: ExportTarget, subject: Exported) -> str | None:
    """The first thing that a target cannot hold."""
    texts = text_problems(subject) if target.framed and "text" in subject.modalities else ()
    return next(itertools.chain(texts, target.problems(subject)), None)
