"""Exports a model and uploads the folder to a model hub.

    big-retrieval push --run=RUN --to=OWNER/NAME
        [--target=TARGET] [--field=NAME] [--python=PATH] [--license=NAME] [--private]
    big-retrieval push --folder=EXPORT --to=OWNER/NAME [--private]

The hub is Hugging Face, or the hub that HF_ENDPOINT names. Log in with `hf auth login`, or set
HF_TOKEN. TARGET is a library as in `big-retrieval export`, by default the first one that supports
the model. --folder uploads an export that exists. Afterwards `big-retrieval import` and
`big_retrieval.import_model` read OWNER/NAME.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from big_retrieval.cli.options import Flag
from big_retrieval.commands.export import ExportedModelOptions
from big_retrieval.errors import UserError
from big_retrieval.exporting import TARGETS

LOG = True


@dataclass(frozen=True, kw_only=True)
class PushOptions(ExportedModelOptions):
    to: str  # Name of the model on the hub, OWNER/NAME
    run: Path | None = None  # Run or checkpoint folder of the model
    folder: Path | None = None  # Export to upload, instead of --run
    target: Annotated[str, Flag(choices=tuple(TARGETS))] = ""  # Library of the export
    private: bool = False  # Only the owner sees a new model


def main(options: PushOptions) -> None:
    if options.folder is not None:
        for flag in ("run", "target", "field", "python"):
            if getattr(options, flag):
                raise UserError(f"--folder is an existing export. Remove --{flag}, or --folder.")
        from big_retrieval.exporting.push import upload

        upload(options.folder, options.to, private=options.private)
        return
    if options.run is None:
        raise UserError("--run is missing: run or checkpoint folder of the model.")
    from big_retrieval.exporting.push import push
    from big_retrieval.inference.load import load

    push(
        load(options.run),
        options.to,
        to=options.target,
        fields=options.field,
        python=options.python,
        license=options.license,
        private=options.private,
    )
