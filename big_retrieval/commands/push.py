"""Exports a model and uploads the folder to a model hub.

    big-retrieval push --run=RUN --to=OWNER/NAME
        [--target=TARGET] [--field=NAME] [--python=PATH] [--license=NAME] [--private]
    big-retrieval push --folder=EXPORT --to=OWNER/NAME [--private]

The hub is that of Hugging Face, or the one that HF_ENDPOINT names; `hf auth login` or HF_TOKEN says
who you are. TARGET is a library as in `big-retrieval export`, by default the first one that can
hold the model. --folder uploads an export that exists. Afterwards `big-retrieval import` and
`big_retrieval.import_model` read OWNER/NAME.
"""

from pathlib import Path

from absl import flags

from big_retrieval import cli
from big_retrieval.errors import UserError
from big_retrieval.exporting import TARGETS

LOG = True
WITHOUT = ("config", "workdir")
RUN = flags.DEFINE_string("run", None, "Run or checkpoint folder of the model")
FOLDER = flags.DEFINE_string("folder", None, "Instead of --run: an export")
TO = flags.DEFINE_string("to", None, "The model's name on the hub, OWNER/NAME")
TARGET = flags.DEFINE_enum("target", None, tuple(TARGETS), "The library that the export is for")
FIELD = flags.DEFINE_list("field", [], "Of the model, whose encoder is exported; all by default")
PYTHON = flags.DEFINE_string("python", "", "Python of an environment that has the library")
LICENSE = flags.DEFINE_string("license", "unknown", "License that the model card names")
PRIVATE = flags.DEFINE_bool("private", False, "Whether only its owner sees a new model")


def main() -> None:
    """Uploads an export, which is made first where --run names a model."""
    if FOLDER.value is None:
        cli.require(
            (RUN, "the run or checkpoint folder of the model"),
            (TO, "the model's name on the hub"),
        )
        _push()
        return
    cli.require((TO, "the model's name on the hub"))
    for flag in (RUN, TARGET, FIELD, PYTHON, LICENSE):
        if flag.present:
            raise UserError(
                f"--folder names an export that exists: leave --{flag.name} out, or --folder."
            )
    from big_retrieval.exporting.push import upload

    upload(Path(FOLDER.value), str(TO.value), private=PRIVATE.value)


def _push() -> None:
    from big_retrieval.exporting.push import push
    from big_retrieval.inference.load import load

    push(
        load(str(RUN.value)),
        str(TO.value),
        to=TARGET.value or "",
        fields=tuple(FIELD.value),
        python=PYTHON.value,
        license=LICENSE.value,
        private=PRIVATE.value,
    )
