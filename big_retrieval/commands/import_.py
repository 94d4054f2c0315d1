"""Makes a checkpoint of ours out of one of another library.

    big-retrieval import --from=PATH --out=FOLDER [--tokenizer=PATH] [--pool=mean]
        [--head=lexical]

PATH is a weight file, a folder of open_clip, Hugging Face, timm or sentence-transformers, or a
name on the hub. FOLDER is then what a run leaves: `big_retrieval.load` and `config.init` read it,
and so does `big-retrieval evaluate --run=FOLDER`. --head=lexical makes a lexical
encoder of a masked-language model; SPLADE models are one anyway. With --config=FILE the model takes
over the names and columns of that config's fields, and its evaluators.
"""

import logging
from pathlib import Path

from absl import flags

from big_retrieval import cli
from big_retrieval.cli import foreign
from big_retrieval.errors import UserError
from big_retrieval.runtime import locks

log = logging.getLogger(__name__)
LOG = True
WITHOUT = ("workdir",)
FROM = flags.DEFINE_string("from", None, "File, folder or hub name of the model")
OUT = flags.DEFINE_string("out", None, "The folder to write")


def main() -> None:
    """Imports the model and writes it."""
    if not FROM.value or not OUT.value:
        missing = "--from" if not FROM.value else "--out"
        raise UserError(f"{missing} is missing: --from=PATH is read and --out=FOLDER written.")
    out = Path(OUT.value)
    with cli.owning(locks.beside(out), out):
        _import(out)


def _import(out: Path) -> None:
    from big_retrieval.interop.model import import_model
    from big_retrieval.train.checkpoint import write_model

    if out.exists() and any(out.iterdir()):
        raise UserError(f"--out {out} exists and is not empty; give a new folder.")
    like = cli.load_config() if cli.CONFIG.value is not None else None
    model = import_model(str(FROM.value), like=like, **foreign.given())
    write_model(model, out)
    log.info(f"written to {out}; to use it: big_retrieval.load({str(out)!r})")
