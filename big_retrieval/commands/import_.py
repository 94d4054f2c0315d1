"""Converts a third-party model to a checkpoint.

    big-retrieval import --from=PATH --out=FOLDER [--tokenizer=PATH] [--pool=mean]
        [--head=lexical]

PATH is a weight file, a folder of open_clip, Hugging Face, timm or sentence-transformers, or a
name on the hub. FOLDER then has the form of a run: `big_retrieval.load`, `config.init` and
`big-retrieval evaluate --run=FOLDER` read it. --head=lexical makes a lexical encoder of a
masked-language model; SPLADE models do not need it. With --config=FILE the model takes the
names and columns of that config's fields, and its evaluators.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from big_retrieval.cli.option_groups import ConfigOptions, PretrainedOptions
from big_retrieval.runtime.atomic_folder import check_free

log = logging.getLogger(__name__)
LOG = True


@dataclass(frozen=True, kw_only=True)
class ImportOptions(ConfigOptions, PretrainedOptions):
    from_: str  # File, folder or hub name of the model
    out: Path  # Folder to write


def main(options: ImportOptions) -> None:
    out = options.out
    with options.owning_file(out):
        from big_retrieval.interop.model import import_model
        from big_retrieval.train.checkpoint import write_model

        check_free(out)
        like = options.load_config() if options.config is not None else None
        model = import_model(options.from_, like=like, **options.model_flags())
        write_model(model, out)
        log.info(f"written to {out}; to use it: big_retrieval.load({str(out)!r})")
