"""examples/gru_tower.py: a recurrent tower whose word vectors start from a file."""

import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import registry
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.errors import UserError
from big_retrieval.inference.load import load
from big_retrieval.train.start import untrained
from tests.examples.helpers import copied, example, trained
from tests.helpers import in_process, results

FILE = """5 4
red 1 2 3 4
blue -1 -2 -3 -4
. . . 9 9 9 9
zebra 5 6 7 8
red 0 0 0 0
"""
SMALL = [
    *["--config.towers.image.width=16", "--config.towers.image.depth=1"],
    *["--config.towers.image.heads=2", "--config.towers.image.mlp=16"],
    *["--config.towers.text.width=8", "--config.checkpoint_every=2"],
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`whole`, and `parts`, which was resumed when the file of vectors was gone."""
    folder = tmp_path_factory.mktemp("own")
    own = copied("gru_tower", folder, "gru")
    (folder / "glove.txt").write_text(FILE)
    flags = [f"--config.towers.text.glove={folder / 'glove.txt'}", "--config.towers.text.words=4"]
    flags += SMALL
    done = trained(own, folder / "whole", *flags, steps=4)
    assert done.returncode == 0, done.stderr
    assert re.search(r"text: 2 of [\d]+ words start from .*glove.txt, the others are", done.stdout)
    done = trained(own, folder / "parts", "--config.stop_after=2", *flags, steps=4)
    assert done.returncode == 0, done.stderr
    (folder / "glove.txt").unlink()
    done = trained(own, folder / "parts", *flags, steps=4)
    assert done.returncode == 0, done.stderr
    return folder


def test_it_is_resumed_bit_by_bit_without_the_vectors(runs: Path) -> None:
    whole, parts = results(runs / "whole"), results(runs / "parts")
    assert whole["params_sha256"] == parts["params_sha256"]


def test_the_model_is_used_with_the_file(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {n: x for n, x in registry._parts["tower"].items() if n != "own_gru"}
    monkeypatch.setitem(registry._parts, "tower", known)
    with pytest.raises(UserError, match=r"is of the type 'own_gru', which .*own_gru_tower.py def"):
        load(runs / "whole")
    model = load(runs / "whole", plugins=[runs / "own_gru_tower.py"])
    texts = model.encode_texts(["a red circle", "a circle red", "a red circle"])
    np.testing.assert_array_equal(texts[0], texts[2])
    assert np.abs(texts[0] - texts[1]).max() > 1e-4  # the order of words counts


def small(**changes: Any) -> configs.Config:
    c = example("gru_tower").get_config("runlocal")
    c.data.count, c.evals = 100, {}
    c.towers.text.update(width=8, words=4, **changes)
    return configs.load(c)


def test_words_of_the_file_start_from_its_vectors(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text(FILE)
    found = []
    for file in (str(tmp_path / "glove.txt"), ""):
        model = untrained(small(glove=file), batch_size=8)
        found.append(np.asarray(model.weights["text"]["words"]["embedding"]))
        tokens = [model.tokenizer.id_to_token(i) for i in range(model.tokenizer.vocab_size)]
    given, drawn = found
    red, blue = tokens.index("red"), tokens.index("blue")
    np.testing.assert_array_equal(given[red], [1, 2, 3, 4])
    np.testing.assert_array_equal(given[blue], [-1, -2, -3, -4])
    others = np.setdiff1d(np.arange(len(drawn)), [red, blue])
    np.testing.assert_array_equal(given[others], drawn[others])


def test_pieces_of_words_start_at_random() -> None:
    words = wordpiece_tokenizer(learn_wordpiece(["red reding bluing"] * 3, 40))
    found = example("gru_tower").ids_of_words(words)
    assert "red" in found
    assert not [word for word in found if word.startswith(("#", "["))]


def test_padding_changes_nothing() -> None:
    module = example("gru_tower").GruModule(20, 4, 8)
    ids = jnp.array([[1, 5, 6, 2, 0, 0], [1, 7, 2, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    mask = jnp.arange(6)[None] < jnp.array([[4], [3], [0]])
    variables = module.init(jax.random.key(0), ids, mask)
    out = module.apply(variables, ids, mask)
    other = module.apply(variables, jnp.where(mask, ids, 9), mask)
    np.testing.assert_array_equal(out, other)
    np.testing.assert_allclose(module.apply(variables, ids[:, :4], mask[:, :4]), out, atol=1e-6)
    np.testing.assert_array_equal(out[2], 0)
    grads = jax.grad(lambda v: module.apply(v, ids, mask).sum())(variables)
    table = grads["params"]["words"]["embedding"]
    assert not np.abs(table[0]).any()
    assert np.abs(table[jnp.array([1, 2, 5, 6, 7])]).min() > 0


def test_the_recurrence_by_hand() -> None:
    """Two words: the state of the first, backward, has seen the second, and the other way round."""
    module = example("gru_tower").GruModule(20, 4, 8)
    ids, mask = jnp.array([[3, 4, 0]]), jnp.array([[True, True, False]])
    variables = module.init(jax.random.key(0), ids, mask)
    p = jax.tree.map(np.asarray, variables["params"])

    def step(cell: Any, h: np.ndarray, x: np.ndarray) -> np.ndarray:
        def dense(name: str, value: np.ndarray) -> np.ndarray:
            return value @ cell[name]["kernel"] + cell[name].get("bias", 0)

        def sigmoid(value: np.ndarray) -> np.ndarray:
            return 1 / (1 + np.exp(-value))

        r = sigmoid(dense("ir", x) + dense("hr", h))
        z = sigmoid(dense("iz", x) + dense("hz", h))
        n = np.tanh(dense("in", x) + r * dense("hn", h))
        return (1 - z) * n + z * h

    first, second = p["words"]["embedding"][[3, 4]]
    zero = np.zeros(4)
    forward = [step(p["forward"], zero, first)]
    forward.append(step(p["forward"], forward[0], second))
    backward = [step(p["backward"], zero, second)]
    backward.append(step(p["backward"], backward[0], first))
    mean = np.concatenate([np.mean(forward, 0), np.mean(backward, 0)])
    np.testing.assert_allclose(module.apply(variables, ids, mask)[0, 0], mean, rtol=1e-5, atol=1e-6)


def test_the_plan_counts_it_by_tracing(runs: Path, tmp_path: Path) -> None:
    done = in_process(
        "main", f"--config={runs / 'own_gru_tower.py'}:runlocal", f"--workdir={tmp_path}", "--plan",
        "--config.towers.text.words=4", "--config.batch_size=16", "--config.fields.image.size=16",
        *SMALL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    c = example("gru_tower").get_config("runlocal")
    length, half, words, dim = c.fields.text.length, 4, 4, c.fields.text.head.dim
    text = 2 * length * 3 * (2 * words * half + 2 * half * half) + 2 * 8 * dim
    patches, width = 4, 16
    layer = 2 * 5 * width * (4 * width + 2 * 16) + 4 * 5 * 5 * width
    image = 2 * patches * 3 * 8 * 8 * width + layer + 2 * 16 * dim
    assert plan["flops_by_part"]["towers"] == 3 * 16 * (text + image)


MISTAKES = [
    ("red 1 2 3\n", "line 1: 3 numbers, but the tower's key words is 4: set it to 3"),
    ("red 1 2 3 x\n", "line 1: not a word and 4 numbers"),
    ("zebra 1 2 3 4\n", "has none of the tokenizer's words"),
    (None, "cannot be read: No such file"),
]


@pytest.mark.parametrize(("body", "words"), MISTAKES)
def test_mistakes_are_one_sentence(body: str | None, words: str, tmp_path: Path) -> None:
    if body is not None:
        (tmp_path / "glove.txt").write_text(body)
    with pytest.raises(UserError, match=words):
        example("gru_tower").read_vectors(str(tmp_path / "glove.txt"), {"red": [1]}, 4)


def test_an_odd_width_is_an_error() -> None:
    done = in_process(
        "main", f"--config={example('gru_tower').__file__}:runlocal", "--workdir=/nowhere",
        "--config.towers.text.width=7",
    )  # fmt: skip
    assert "config.towers.text.width is 7; it must be even" in done.stderr
