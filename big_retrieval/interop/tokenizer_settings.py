"""Tokenizer settings of a folder: files, maximum length, and keys that must agree."""

from pathlib import Path
from typing import Any

from big_retrieval.interop.files import read_json
from big_retrieval.interop.hugging_face_keys import TOKENIZER
from big_retrieval.interop.settings_file import SettingsFile

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "merges.txt")
_LONGEST = 10**6  # a larger model_max_length means no limit


def tokenizer_folder(folder: Path) -> Path | None:
    """Returns the folder if it has a tokenizer, else None.

    Raises:
      UserError: a key of tokenizer_config.json that is unknown, or contradicts the tokenizer.
    """
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    file = SettingsFile.open(folder / "tokenizer_config.json", TOKENIZER)
    file.get("model_max_length")
    lower, accents, chinese = (
        file.get(key) for key in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
    )
    normalizer = _bert_normalizer(folder / "tokenizer.json")
    if normalizer is None:  # vocab.txt, or a tokenizer that has no such settings
        if accents not in (None, lower is not False):
            raise file.refused("strip_accents", "a vocab.txt with this value cannot be imported")
        if chinese not in (None, True):
            raise file.refused("tokenize_chinese_chars", "only true can be imported")
    else:
        if normalizer.get("strip_accents", False) is None:  # accents are stripped with the case
            normalizer["strip_accents"] = normalizer.get("lowercase")
        for key, name, value in (
            ("do_lower_case", "lowercase", lower),
            ("strip_accents", "strip_accents", accents),
            ("tokenize_chinese_chars", "handle_chinese_chars", chinese),
        ):
            if value is not None and normalizer.get(name, value) != value:
                reason = f"tokenizer.json has {normalizer[name]!r}; make them agree"
                raise file.refused(key, reason)
    file.finish()
    return folder


def _bert_normalizer(path: Path) -> dict[str, Any] | None:
    """Returns BERT's normalizer of a tokenizer.json, or None."""
    normalizer = (read_json(path) if path.is_file() else {}).get("normalizer")
    is_bert = isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer"
    return normalizer if is_bert else None


def tokenizer_length(folder: Path) -> int | None:
    """Returns the maximum number of tokens that the tokenizer's settings give, or None."""
    file = SettingsFile.open(folder / "tokenizer_config.json", TOKENIZER)
    length = file.number("model_max_length")
    return int(length) if length and length < _LONGEST else None
