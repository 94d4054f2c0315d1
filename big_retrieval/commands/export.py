"""Writes a model as a folder of another library, and checks that it computes the same there.

    big-retrieval export --run=RUN --to=TARGET --out=FOLDER
        [--field=NAME] [--python=PATH] [--license=NAME]
    big-retrieval export verify FOLDER [--python=PATH] [--trust-code]

TARGET is open_clip, transformers, sentence-transformers, torch (one PyTorch module for this model)
or onnx. FOLDER has weights, settings, tokenizer and preprocessing, a model card (README.md) and
certificate.json: the largest difference between both embeddings. --python is the Python of an
environment with the library and PyTorch. Without PyTorch the export is marked as unverified, and
`verify` completes the certificate later. onnx needs PyTorch, onnx and onnxscript there, and
onnxruntime for the certificate. The command fails if embeddings differ by more than 1e-5. `verify`
runs Python files of FOLDER only with --trust-code.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from big_retrieval.cli.option_groups import OutputOptions, PluginOptions
from big_retrieval.cli.options import Flag
from big_retrieval.errors import UserError
from big_retrieval.exporting import TARGETS

LOG = True


@dataclass(frozen=True, kw_only=True)
class ExportedModelOptions(PluginOptions):
    field: tuple[str, ...] = ()  # Model fields whose encoders are exported; all by default
    python: str = ""  # Python of an environment that has the library
    license: str = "unknown"  # License that the model card names


@dataclass(frozen=True, kw_only=True)
class ExportOptions(ExportedModelOptions, OutputOptions):
    run: Path  # Run or checkpoint folder of the model
    to: Annotated[str, Flag(choices=tuple(TARGETS))]  # Library to export to
    out: Path  # Folder to write


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(OutputOptions):
    folders: Annotated[tuple[str, ...], Flag(words=1)] = ()
    python: str = ""  # Python of an environment that has the library
    trust_code: bool = False  # Run Python files of the folder; use it for folders you wrote


def main(options: ExportOptions) -> None:
    out = options.out
    with options.owning_file(out):
        from big_retrieval.exporting.export import export
        from big_retrieval.inference.load import load

        export(
            load(options.run),
            to=options.to,
            out=out,
            fields=options.field,
            python=options.python,
            license=options.license,
        )


def verify(options: VerifyOptions) -> None:
    if not options.folders:
        raise UserError("The folder is missing: big-retrieval export verify FOLDER.")
    folder = Path(options.folders[0])
    with options.owning_file(folder, "folder"):
        from big_retrieval.exporting.export import verify

        verify(folder, python=options.python, trust_code=options.trust_code)


ACTIONS = {"": main, "verify": verify}
