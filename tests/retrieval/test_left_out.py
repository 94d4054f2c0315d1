"""Documents that cannot be encoded are left out one by one, in whatever field the damage is."""

import types
from typing import Any

import numpy as np
import pytest

from big_retrieval.data.skipped import LeftOut
from big_retrieval.errors import Damaged
from big_retrieval.retrieval import making
from big_retrieval.retrieval.documents import Chunk
from big_retrieval.retrieval.progress import ProgressCounter

TEXTS, TITLES = ["a", "poison", "c", "d"], ["t", "t", "poison", "t"]


@pytest.mark.parametrize("model", [True, False], ids=["a model", "bags of words"])
def test_a_text_or_a_title_that_no_tokenizer_bears_is_left_out(model, monkeypatch, capsys):
    def chunks(*args):
        yield Chunk(list("wxyz"), {"text": TEXTS}, {"text": TITLES}, TEXTS)

    def bag(items, length, normalise):
        if any("poison" in item for item in items):
            raise RuntimeError("odd")
        return np.zeros(len(items))

    def encode_chunk(model, chunk, fields):
        if "poison" in [*chunk.values["text"], *chunk.titles["text"]]:
            raise Damaged("texts, record 0", "it cannot be used (RuntimeError: odd)")
        return np.zeros(len(chunk))

    monkeypatch.setattr(making, "read", chunks)
    monkeypatch.setattr(making, "normalises", lambda config, name: False)
    monkeypatch.setattr(making, "encode_chunk", encode_chunk)
    work: Any = types.SimpleNamespace(
        records=range(4), reader=types.SimpleNamespace(images=()), fields={"text": 1.0},
        config=types.SimpleNamespace(fields={"text": types.SimpleNamespace(length=9)}),
        words=types.SimpleNamespace(bag=bag), model=object() if model else None,
    )  # fmt: skip
    left_out = LeftOut("documents")
    ((chunk, found),) = making._chunks(work, left_out, ProgressCounter("documents", 4))
    assert chunk.ids == ["w", "z"]
    assert len(found) == left_out.count == 2
    assert capsys.readouterr().err.count("it cannot be used (RuntimeError: odd)") == 2
