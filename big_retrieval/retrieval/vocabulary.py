"""Bags of words: the terms of a lexical field with their tokenizer."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import sparse

from big_retrieval.config import Config, is_lexical, lexical_head
from big_retrieval.data.fields.texts import Text
from big_retrieval.data.text.tokenizers import FixedLengthTokenizer
from big_retrieval.errors import UserError
from big_retrieval.io.npy import ArrayWriter
from big_retrieval.retrieval.files import open_array
from big_retrieval.sparse.terms import Terms

FILE, TOKENIZER = "terms.npy", "tokenizer.json"


class BagOfWordsEncoder:
    """Encoder of texts to bags of words over the terms of a lexical field, without a model."""

    def __init__(self, terms: Terms, tokenizer: FixedLengthTokenizer):
        special = tuple(sorted(tokenizer.special_ids))
        self.terms, self._tokenizer = dataclasses.replace(terms, special=special), tokenizer

    def __len__(self) -> int:
        return len(self.terms)

    @functools.cached_property
    def words(self) -> list[str]:
        """Token of each term as the tokenizer writes it; [id n] for an id without a token."""
        size = self._tokenizer.vocab_size
        return [self._tokenizer.id_to_token(i) if i < size else f"[id {i}]" for i in self.terms.ids]

    def bag(
        self, values: Sequence[Text], length: int, *, normalise: bool = False
    ) -> sparse.csr_array:
        """Builds bags of words with 1 at the term of every token, float32 [n, V].

        Special tokens never count, not even the unknown token, although they may have a term: every
        document contains the end token.

        Args:
          values: n texts, or pairs of title and text.
          length: maximum number of tokens per text, with special tokens.
          normalise: True to scale bags to norm 1 (see `normalises`).
        """
        pairs = [("", value) if isinstance(value, str) else value for value in values]
        titles, texts = [title for title, _ in pairs], [text for _, text in pairs]
        ids, mask = self._tokenizer.encode(texts, length, titles)
        return self.terms.bag(ids, mask, normalise=normalise)

    def fingerprint(self) -> str:
        """Returns the SHA-256 of the tokenizer and of the terms' ids."""
        digest = hashlib.sha256(self._tokenizer.to_json().encode())
        digest.update(np.asarray(self.terms.ids, "<i4").tobytes())
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        """Writes the files of `load`."""
        with ArrayWriter(folder / FILE, np.int32) as file:
            file.append(np.asarray(self.terms.ids, np.int32))
        self._tokenizer.save(folder / TOKENIZER)

    @classmethod
    def load(cls, folder: Path) -> "BagOfWordsEncoder":
        """Reads the files of `save`; raises a UserError if one is missing or damaged."""
        tokenizer = FixedLengthTokenizer.load(folder / TOKENIZER)
        ids = tuple(open_array(folder / FILE, np.int32).tolist())
        return cls(Terms(ids, max(tokenizer.vocab_size, 1 + max(ids))), tokenizer)


def normalises(config: Config, field: str) -> bool:
    """Returns True if embeddings of a lexical field, and so bags of documents, have norm 1."""
    head = lexical_head(config.fields, field)
    return head is not None and head.normalise


def vocabulary_of(config: Config, tokenizer: FixedLengthTokenizer, field: str) -> BagOfWordsEncoder:
    """Returns the vocabulary of a field; raises a UserError if it has no lexical head."""
    from big_retrieval.models.towers import lexical_terms

    if not is_lexical(config, field):
        raise UserError(f"Field {field!r} has no lexical head, so no vocabulary terms.")
    terms = lexical_terms(config, tokenizer.vocab_size, tokenizer)
    return BagOfWordsEncoder(terms[config.fields[field].shares_head or field], tokenizer)
