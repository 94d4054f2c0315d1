"""Settings of a sweep: what a model can have, and what is said where it cannot."""

from dataclasses import replace
from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.config import ImageField, Lexical, TextField
from big_retrieval.errors import UserError
from big_retrieval.evals.modes import Side
from big_retrieval.tradeoff.gates import side_gates

NARROW, WIDE = Lexical(terms="words", top_k=100, keep_input_terms=True), Lexical(terms="words")
FIELDS: dict[str, Any] = {
    "query": TextField(head=NARROW),
    "passage": TextField(side="document", head=NARROW, shares_head="query"),
    "image": ImageField(side="document", head=WIDE),
    "title": TextField(side="document", head=WIDE),
}


def names(given: tuple[str, ...], side: Side, *chosen: str) -> list[str]:
    return list(side_gates(given, side, FIELDS, chosen))


def test_default_gates_narrow_the_models_own() -> None:
    assert names((), "query", "query") == ["bag", "4", "16", "64", "all"]
    assert names((), "document", "passage") == ["binary", "16", "64", "all"]
    assert names((), "document", "title") == ["binary", "64", "256", "all"]
    assert names((), "document", "image") == ["64", "256", "all"]  # images have no words
    tiny = {"query": replace(FIELDS["query"], head=replace(NARROW, top_k=3))}
    assert list(side_gates((), "query", tiny, ["query"])) == ["bag", "all"]


def test_gates_are_modes_that_leave_the_other_side_as_it_is() -> None:
    gates = side_gates(("bag", "10", "all"), "query", FIELDS, ["query"])
    assert [mode.bags for mode in gates.values()] == ["query", None, None]
    assert gates["10"].top_k == {"query": 10, "document": None}
    documents = side_gates(("0", "binary"), "document", FIELDS, ["title"])
    assert documents["0"].top_k == {"query": None, "document": 0}
    assert documents["binary"].bags == "document"


@pytest.mark.parametrize(
    ("given", "side", "chosen", "words"),
    [
        (("bags",), "query", "query", r"--queries has 'bags'; it takes 'bag'"),
        (("bag",), "document", "title", r"--documents has 'bag'; it takes 'binary'"),
        (("-1",), "query", "query", r"--queries has '-1'"),
        (
            ("101",),
            "query",
            "query",
            r"--queries has 101, but the model's own gate leaves 100",
        ),
        (("all", "7", "7"), "query", "query", "has '7' twice"),
        (("binary",), "document", "image", "the document side has images"),
    ],
)
def test_gates_that_cannot_be(given: tuple[str, ...], side: Side, chosen: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        side_gates(given, side, FIELDS, [chosen])


def test_a_gate_as_wide_as_the_models_own() -> None:
    assert names(("100",), "query", "query") == ["100"]
    assert names(("30000",), "document", "title") == ["30000"]
    assert configs.lexical_head(FIELDS, "passage") is NARROW
