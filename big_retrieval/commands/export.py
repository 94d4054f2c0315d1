"""Writes a model as a folder of another library, and checks that it computes the same there.

    big-retrieval export --run=RUN --to=TARGET --out=FOLDER
        [--field=NAME] [--python=PATH] [--license=NAME]
    big-retrieval export verify FOLDER [--python=PATH] [--trust-code]

TARGET is open_clip, transformers, sentence-transformers, torch (a PyTorch module of the model's
own) or onnx. FOLDER has weights, settings, tokenizer and preprocessing, a model card (README.md)
and certificate.json: how far the target's embeddings are from ours. --python names the Python of
an environment that has the library and PyTorch; without PyTorch the export is written and marked as
unverified, and `verify` completes the certificate later. The files of onnx are written there, so
that it needs PyTorch, onnx and onnxscript, and onnxruntime for the certificate. The command fails
where embeddings differ by more than 1e-5. `verify` runs Python files of FOLDER only with
--trust-code.
"""

from pathlib import Path

from absl import flags

from big_retrieval import cli
from big_retrieval.errors import UserError
from big_retrieval.exporting import TARGETS
from big_retrieval.runtime import locks

WORDS = 2
LOG = True
WITHOUT = ("config", "workdir")
RUN = flags.DEFINE_string("run", None, "Run or checkpoint folder of the model")
TO = flags.DEFINE_enum("to", None, tuple(TARGETS), "The library")
OUT = flags.DEFINE_string("out", None, "The folder to write")
FIELD = flags.DEFINE_list("field", [], "Of the model, whose encoder is exported; all by default")
PYTHON = flags.DEFINE_string("python", "", "Python of an environment that has the library")
TRUST_CODE = flags.DEFINE_bool(
    "trust_code", False, "Let `verify` run Python files of the folder; use it for folders you wrote"
)
flags.DEFINE_alias("trust-code", "trust_code")
LICENSE = flags.DEFINE_string("license", "unknown", "License that the model card names")


def main(*words: str) -> None:
    """Exports, or verifies an export."""
    if words:
        if words[0] != "verify" or len(words) != 2:
            raise UserError("say what to verify: big-retrieval export verify FOLDER.")
        _verify(Path(words[1]))
        return
    cli.require(
        (RUN, "the run or checkpoint folder of the model"),
        (TO, f"the library, one of {', '.join(TARGETS)}"),
        (OUT, "the folder to write"),
    )
    out = Path(str(OUT.value))
    with cli.owning(locks.beside(out), out):
        _export(out)


def _export(out: Path) -> None:
    from big_retrieval.exporting.export import export
    from big_retrieval.inference.load import load

    export(
        load(str(RUN.value)),
        to=str(TO.value),
        out=out,
        fields=tuple(FIELD.value),
        python=PYTHON.value,
        license=LICENSE.value,
    )


def _verify(folder: Path) -> None:
    from big_retrieval.exporting.export import verify

    with cli.owning(locks.beside(folder), folder, "folder"):
        verify(folder, python=PYTHON.value, trust_code=TRUST_CODE.value)
