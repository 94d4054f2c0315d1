"""The flags that say of a model of another library what it does not say itself."""

from typing import Any

from absl import flags

TOKENIZER = flags.DEFINE_string("tokenizer", "", "Where a model of others comes without one")
POOL = flags.DEFINE_enum(
    "pool", None, ("first", "last", "mean"), "How texts are pooled, where the model does not say"
)
HEAD = flags.DEFINE_enum(
    "head", None, ("lexical",), "Keep the masked-language head, as a lexical one"
)


def given() -> dict[str, Any]:
    """The flags as keys of `import_model`; "": not given."""
    return {flag.name: flag.value or "" for flag in (TOKENIZER, POOL, HEAD)}
