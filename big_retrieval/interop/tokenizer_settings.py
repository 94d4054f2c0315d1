"""Tokenizer settings of a folder: which files, how long texts may be, and what must agree."""

import json
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError
from big_retrieval.interop.hugging_face_keys import TOKENIZER
from big_retrieval.interop.settings_file import SettingsFile
from big_retrieval.io.regular import read_text

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "merges.txt")
_LONGEST = 10**6  # a larger model_max_length stands for no limit


def tokenizer_folder(folder: Path) -> Path | None:
    """Returns the folder if it has a tokenizer, else None.

    Raises:
      UserError: a key of tokenizer_config.json that is unknown, or contradicts the tokenizer.
    """
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    file = SettingsFile.open(folder / "tokenizer_config.json", TOKENIZER)
    file.get("model_max_length")
    stated = _normalizer(folder / "tokenizer.json")
    lower = file.get("do_lower_case")
    if stated is None:  # vocab.txt, or a tokenizer that has no such settings
        alike = {
            "strip_accents": (None, lower is not False),
            "tokenize_chinese_chars": (None, True),
        }
        for key, values in alike.items():
            if file.get(key) not in values:
                raise file.refused(key, "with a vocab.txt, this value cannot be imported")
    else:
        alike = {
            "do_lower_case": ("lowercase", lower),
            "strip_accents": ("strip_accents", file.get("strip_accents")),
            "tokenize_chinese_chars": ("handle_chinese_chars", file.get("tokenize_chinese_chars")),
        }
        for key, (name, value) in alike.items():
            if value is not None and name in stated and not _same(stated, name, value):
                raise file.refused(key, f"tokenizer.json has {stated[name]!r}; make them agree")
    file.finish()
    return folder


def _same(stated: dict[str, Any], name: str, value: Any) -> bool:
    """Returns True if a normalizer has a value; accents are stripped with the case by default."""
    have = stated[name]
    if name == "strip_accents" and have is None:
        have = stated.get("lowercase")
    return have == value


def _normalizer(path: Path) -> dict[str, Any] | None:
    """Returns BERT's normalizer of a tokenizer.json, or None."""
    if not path.is_file():
        return None
    try:
        found = json.loads(read_text(path)).get("normalizer") or {}
    except (OSError, ValueError, AttributeError):
        raise UserError(f"{path} is not readable JSON; restore it.") from None
    return found if found.get("type") == "BertNormalizer" else None


def tokenizer_length(folder: Path) -> int | None:
    """Returns the maximum number of tokens that the tokenizer's settings give, or None."""
    file = SettingsFile.open(folder / "tokenizer_config.json", TOKENIZER)
    length = file.number("model_max_length")
    return int(length) if length and length < _LONGEST else None
