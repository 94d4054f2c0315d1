"""Documents that cannot be encoded are skipped one by one, in whatever field the damage is."""

import types
from typing import Any

import numpy as np
import pytest

from big_retrieval.errors import Damaged
from big_retrieval.retrieval import encode, making
from big_retrieval.retrieval.documents import DocumentRow

ITEMS = [("t", "a"), ("t", "poison"), ("poison", "c"), ("t", "d")]


@pytest.mark.parametrize("model", [True, False], ids=["a model", "bags of words"])
def test_a_text_or_a_title_that_no_tokenizer_bears_is_left_out(model, monkeypatch, capsys):
    def read(*args):
        yield [DocumentRow(name, {"text": item}) for name, item in zip("wxyz", ITEMS, strict=True)]

    def bag(items, length, normalise):
        if any("poison" in item for item in items):
            raise RuntimeError("odd")
        return np.zeros(len(items))

    def encode_rows(model, rows, fields):
        if any("poison" in row.values["text"] for row in rows):
            raise Damaged("texts, record 0", "it cannot be used (RuntimeError: odd)")
        return np.zeros(len(rows))

    monkeypatch.setattr(encode, "read", read)
    monkeypatch.setattr(making, "normalises", lambda config, name: False)
    monkeypatch.setattr(making, "encode_rows", encode_rows)
    work: Any = types.SimpleNamespace(
        records=range(4), reader=types.SimpleNamespace(images=(), noun="documents"),
        config=types.SimpleNamespace(fields={"text": types.SimpleNamespace(length=9)}),
        words=types.SimpleNamespace(bag=bag), model=object() if model else None,
        fields={"text": 1.0}, span=range(4), block=4,
    )  # fmt: skip
    ((ids, rows, found),) = making._encoded(work)
    assert ids == [row.id for row in rows] == ["w", "z"]
    assert len(found) == 2
    said = capsys.readouterr().err
    assert said.count("it cannot be used (RuntimeError: odd)") == 2
    assert "skipped: 2 of the documents" in said
