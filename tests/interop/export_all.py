"""Exports models to every target that can hold them, and compares them with the real libraries.

    python -m tests.interop.export_all [--python=PATH] [--to=TARGET,...]

Exports all shipped configs (`:runlocal`, random weights), with each field alone and all together,
and the models of tests/interop/data. --python or BIG_RETRIEVAL_EXPORT_PYTHON is the Python of an
environment with PyTorch and the libraries, by default this one. Prints the largest difference of
each export, and the versions. Exits with 1 if a difference is too large, a library cannot open a
folder, or the lines of a model card do not run. Targets without their library are skipped.
"""

import argparse
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from big_retrieval.exporting import TARGETS
from big_retrieval.exporting.certificate import VERIFIED, Certificate, complete
from big_retrieval.exporting.export import write_export
from tests.exporting import test_configs, test_export

PYTHON = os.environ.get("BIG_RETRIEVAL_EXPORT_PYTHON") or sys.executable
MODULES = {  # of the libraries, in addition to PyTorch
    "transformers": ("transformers",),
    "sentence-transformers": ("sentence_transformers",),
    "open_clip": ("open_clip",),
    "torch": (),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
}
# Images for the lines of model cards, and a program that runs many cards.
IMAGES = """\
import numpy
from PIL import Image

image = Image.fromarray(numpy.zeros((40, 50, 3), numpy.uint8))
images = [image]
"""
DRIVER = """\
import json, sys

found = {}
for name, program in json.load(open(sys.argv[1])).items():
    for module in ("model", "encode"):
        sys.modules.pop(module, None)  # an earlier export's
    try:
        exec(compile(program, name, "exec"), {"__name__": name})
    except Exception as problem:
        found[name] = f"{type(problem).__name__}: {problem}"
json.dump(found, open(sys.argv[2], "w"))
"""


@dataclass(frozen=True)
class Exported:
    """One export of a config or of a case of test_export; an empty field means all fields."""

    model: str
    field: str
    folder: Path
    certificate: Certificate

    def __str__(self) -> str:
        return f"{self.model}, {self.field or 'all'}, {self.certificate.to}"


@functools.cache
def available(python: str) -> tuple[str, ...]:
    """The targets whose libraries a Python has."""
    names = sorted({"torch", *(name for each in MODULES.values() for name in each)})
    program = f"import importlib.util as u; print(*filter(u.find_spec, {names!r}))"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    return tuple(to for to in TARGETS if {"torch", *MODULES.get(to, ())} <= found)


def write_all(
    folder: Path, targets: Sequence[str], python: str, names: Sequence[str] = test_configs.NAMES
) -> Iterator[Exported]:
    """Writes the exports of some configs that some targets can hold, one after another."""
    for name, field, to in test_configs.CASES:
        if to in targets and name in names:
            out = folder / f"{name}_{field}_{to}"
            fields = (field,) if field else ()
            model = test_configs.random_model(name)
            done = write_export(model, to=to, out=out, fields=fields, python=python)
            yield Exported(name, field, out, done)
    for name, case in test_export.CASES.items():
        if case.to in targets:
            place = folder / name.replace(" ", "_")
            place.mkdir()
            _, one = test_export.model_of(name, place)
            done = write_export(one, to=case.to, out=place / "out", fields=case.fields)
            yield Exported(name, "", place / "out", done)


def verified(exports: Sequence[Exported], python: str) -> list[Exported]:
    """The exports with completed certificates."""
    done = complete([(export.certificate, export.folder) for export in exports], python)
    return [replace(x, certificate=y) for x, y in zip(exports, done, strict=True)]


def failing_cards(exports: Sequence[Exported], python: str) -> dict[str, str]:
    """Runs the lines of all model cards; returns export -> error."""
    programs = {}
    for export in exports:
        lines = re.search(r"```python\n(.*?)```", (export.folder / "README.md").read_text(), re.S)
        assert lines is not None
        programs[str(export)] = IMAGES + lines[1].replace("FOLDER", str(export.folder))
    with tempfile.TemporaryDirectory() as place:
        given, found = Path(place, "programs.json"), Path(place, "found.json")
        given.write_text(json.dumps(programs))
        subprocess.run([python, "-c", DRIVER, given, found], capture_output=True, check=True)
        return json.loads(found.read_text())


def problems(exports: Sequence[Exported], python: str) -> list[str]:
    """The problems of exports that were `verified`, a line each."""
    failed = [x for x in exports if x.certificate.status != VERIFIED]
    cards = failing_cards(exports, python).items()
    return [f"{x}: {x.certificate.reason}" for x in failed] + [f"{x}: card: {e}" for x, e in cards]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=PYTHON)
    parser.add_argument("--to", default=",".join(TARGETS))
    args = parser.parse_args()
    have = available(args.python)
    wanted = args.to.split(",")
    with tempfile.TemporaryDirectory() as place:
        targets = [to for to in wanted if to in have]
        exports = verified(list(write_all(Path(place), targets, args.python)), args.python)
        print("| model | exported field | target | largest difference |\n| --- | --- | --- | --- |")
        versions: dict[str, str] = {}
        for each in exports:
            done = each.certificate
            differences = (entry["difference"] for entry in done.fields.values())
            largest = max((d for d in differences if d is not None), default=float("nan"))
            print(f"| {each.model} | {each.field or 'all'} | {done.to} | {largest:.1e} |")
            versions |= done.versions["theirs"]
        found = problems(exports, args.python)
    print(f"{len(exports)} exports; {', '.join(f'{k} {v}' for k, v in sorted(versions.items()))}")
    for to in sorted(set(wanted) - set(have)):
        print(f"not compared, as its library is missing: {to}")
    for line in found:
        print(line, file=sys.stderr)
    sys.exit(1 if found or not exports else 0)


if __name__ == "__main__":
    main()
