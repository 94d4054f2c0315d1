"""The flags --beir and --beir_sets: BEIR's data sets as evaluators of any text model."""

import dataclasses
from collections.abc import Sequence

from absl import flags

from big_retrieval import config as configs
from big_retrieval.config import Config, Field, is_lexical
from big_retrieval.config.benchmarks import beir_evaluators
from big_retrieval.errors import UserError

FOLDER = flags.DEFINE_string(
    "beir", "", "Folder of BEIR's data sets: adds them as evaluators, and their average"
)
SETS = flags.DEFINE_list("beir_sets", [], "Which of BEIR's data sets, such as scifact,fiqa")


def added(config: Config) -> Config:
    """Returns a config with the evaluators of the flags; the same config without flags.

    Raises:
      UserError: the model does not compare texts, or there is no such data set.
    """
    if not FOLDER.value:
        if SETS.value:
            raise UserError("--beir_sets chooses from the data sets of --beir: give that, too.")
        return config
    try:
        return with_beir(config, FOLDER.value, SETS.value)
    except UserError as problem:
        raise UserError(f"--beir: {problem}") from None


def with_beir(config: Config, folder: str, sets: Sequence[str] = ()) -> Config:
    """Returns a config with BEIR's evaluators; lexical models search by bags of words, too.

    Raises:
      UserError: a side is not one text field, or an unknown name.
    """
    query, document = _text_field(config, "query"), _text_field(config, "document")
    lexical = is_lexical(config, *config.side("query"), *config.side("document"))
    columns = configs.Beir(query_column=query.column, text_column=document.column)
    evaluators = beir_evaluators(folder, sets, modes=("bag",) if lexical else (), columns=columns)
    return dataclasses.replace(config, evals={**config.evals, **evaluators})


def _text_field(config: Config, side: str) -> Field:
    """Returns the only field of a side, a text field."""
    names = config.side(side)  # type: ignore[arg-type]
    if len(names) != 1 or config.fields[names[0]].modality != "text":
        raise UserError(
            f"BEIR's data sets are for models with one text field on the {side} side; this one has "
            f"{', '.join(names) or 'none'}."
        )
    return config.fields[names[0]]
