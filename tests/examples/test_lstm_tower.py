"""examples/lstm_tower.py: a recurrent tower whose word vectors start from a file."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.errors import UserError
from big_retrieval.inference.load import load
from tests.examples.helpers import copied, example, trained, without_own_parts
from tests.helpers import results

pytestmark = pytest.mark.slow

FILE = "red 1 2 3 4\nblue -1 -2 -3 -4\n"
SMALL = [
    *["--config.towers.image.width=16", "--config.towers.image.depth=1"],
    *["--config.towers.image.heads=2", "--config.towers.image.mlp=16"],
    *["--config.towers.text.width=8", "--config.checkpoint_every=2"],
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`whole`, and `parts`, which was resumed when the file of vectors was gone."""
    folder = tmp_path_factory.mktemp("own")
    own = copied("lstm_tower", folder, "lstm")
    (folder / "glove.txt").write_text(FILE)
    flags = [f"--config.towers.text.glove={folder / 'glove.txt'}", "--config.towers.text.words=4"]
    flags += SMALL
    done = trained(own, folder / "whole", *flags, steps=4)
    assert re.search(r"text: 2 of [\d]+ words start from .*glove.txt, the others are", done.stdout)
    assert "text: the forget gates start at 1" in done.stdout
    done = trained(own, folder / "parts", "--config.stop_after=2", *flags, steps=4)
    (folder / "glove.txt").unlink()
    done = trained(own, folder / "parts", *flags, steps=4)
    return folder


def test_lstm_resumes_bit_identical_without_vectors(runs: Path) -> None:
    whole, parts = results(runs / "whole"), results(runs / "parts")
    assert whole["params_sha256"] == parts["params_sha256"]


def test_load_of_lstm_needs_its_file(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_own_parts(monkeypatch, "tower")
    with pytest.raises(UserError, match=r"is of the type 'own_lstm', which .*own_lstm_tower.py d"):
        load(runs / "whole")
    model = load(runs / "whole", plugins=[runs / "own_lstm_tower.py"])
    texts = model.encode_texts(["a red circle", "a circle red", "a red circle"])
    np.testing.assert_array_equal(texts[0], texts[2])
    assert np.abs(texts[0] - texts[1]).max() > 1e-4  # the order of words counts
    # Four steps at small rates have hardly moved what they started from.
    gates = model.weights["text"]["backward"]["hf"]["bias"]
    np.testing.assert_allclose(gates, 1, atol=0.02)


def test_padding_changes_nothing() -> None:
    module = example("lstm_tower").LstmModule(20, 4, 8)
    ids = jnp.array([[1, 5, 6, 2, 0, 0], [1, 7, 2, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    mask = jnp.arange(6)[None] < jnp.array([[4], [3], [0]])
    variables = module.init(jax.random.key(0), ids, mask)
    out = module.apply(variables, ids, mask)
    np.testing.assert_array_equal(out, module.apply(variables, jnp.where(mask, ids, 9), mask))
    np.testing.assert_array_equal(out[2], 0)
