"""Class names and prompts out of a JSON file."""

import json
from pathlib import Path
from typing import Any

import pytest

from big_retrieval.errors import UserError
from big_retrieval.evals.class_names import fill_prompts, read_names

KEY = "config.evals.<name>.file"
GOOD = {"classes_openai": ["cat", "dog"], "templates_80": ["a photo of a {}."], "other": 1}


def write(folder: Path, content: Any) -> str:
    path = folder / "names.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_read_names_of_one_object(tmp_path: Path) -> None:
    path = write(tmp_path, {"imagenet": GOOD, "sets": {"pets": GOOD | {"classes": ["fish"]}}})
    assert read_names(f"{path}#imagenet", KEY)[:2] == (("cat", "dog"), ("a photo of a {}.",))
    assert read_names(f"{path}#sets/pets", KEY)[0] == ("cat", "dog")  # of several the first
    assert read_names(write(tmp_path, GOOD), KEY)[0] == ("cat", "dog")


@pytest.mark.parametrize(
    ("content", "place", "words"),
    [
        ("[", "", "not readable JSON"),
        ({"imagenet": GOOD}, "#birds", "no 'birds'"),
        ({"imagenet": GOOD}, "#imagenet/classes_openai/0", "no 'imagenet/classes_openai/0'"),
        ([1], "", "not an object"),
        ({"classes": ["cat"]}, "", "no list of prompts"),
        ({"classes": [], "prompts": ["{}"]}, "", "no list of classes"),
        ({"classes": ["cat", ["dog", 2]], "prompts": ["{}"]}, "", "has 2;"),
        ({"classes": ["cat", []], "prompts": ["{}"]}, "", "has [];"),
        ({"classes": [["a"] * 3, ["a"] * 5], "prompts": ["{}"]}, "", "numbers of names"),
        ({"classes": ["cat"], "prompts": ["a photo"]}, "", "needs a {}"),
        (GOOD | {"ids": ["n1"]}, "", "ids must be a list of 2 texts"),
    ],
)
def test_read_names_rejects(tmp_path: Path, content: Any, place: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        read_names(write(tmp_path, content) + place, KEY)
    assert words in str(caught.value)


def test_classes_with_several_names(tmp_path: Path) -> None:
    content = {"classes": [["angry"], ["happy", "smiling"], "sad"], "templates": ["{}!", "{}?"]}
    classes, prompts, ids = read_names(write(tmp_path, content), KEY)
    assert (classes, prompts) == (("angry", ("happy", "smiling"), "sad"), ("{}!", "{}?"))
    assert ids == ()
    content["ids"] = ["n1", "n2", "n3"]
    assert read_names(write(tmp_path, content), KEY).ids == ("n1", "n2", "n3")
    assert fill_prompts(classes, ("{}!",)) == [
        "angry!",
        "angry!",
        "happy!",
        "smiling!",
        "sad!",
        "sad!",
    ]
    assert fill_prompts(("a", "b"), prompts) == ["a!", "a?", "b!", "b?"]


def test_read_names_of_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^config\.evals\.pets\.file: .*nowhere\.json"):
        read_names(str(tmp_path / "nowhere.json#sets/pets"), "config.evals.pets.file")
