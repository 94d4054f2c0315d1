"""BEIR's data sets as evaluators of any text model."""

import dataclasses
from collections.abc import Sequence

from big_retrieval import config as configs
from big_retrieval.config import Config, Field, is_lexical
from big_retrieval.config.benchmarks import beir_evaluators
from big_retrieval.errors import UserError


def with_beir(config: Config, folder: str, sets: Sequence[str] = ()) -> Config:
    """Returns a config with BEIR's evaluators; lexical models search by bags of words, too."""
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
            f"BEIR needs exactly one {side} field, a text; the config has: "
            f"{', '.join(names) or 'none'}. Use another config."
        )
    return config.fields[names[0]]
