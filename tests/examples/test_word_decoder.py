"""examples/word_decoder.py: a layer with targets of its own, as a constraint."""

import json
from pathlib import Path

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.data.build import make_source
from big_retrieval.data.fields.stores import save_store, texts_sha256
from big_retrieval.inference.load import load
from tests.examples.helpers import SHALLOW, copied, example, ran, trained
from tests.helpers import rows

pytestmark = pytest.mark.slow

NAME = "word_decoder"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps with the constraint, by a copy in another folder."""
    folder = tmp_path_factory.mktemp("own")
    flags = ["--config.log_every=1", SHALLOW]
    trained(copied(NAME, folder, NAME), folder / "run", *flags)
    return folder


def test_models_are_used_without_decoder_and_targets(run: Path) -> None:
    row = rows(run / "run")[0]
    total = row["main/loss"] + row["words/loss"] / 0.2 - 1  # lambda starts at 1
    assert row["loss"] == pytest.approx(total, rel=1e-5)
    assert 0 < row["words/accuracy"] < 1
    model = load(run / "run")
    assert "losses" not in model.weights
    assert np.isfinite(model.encode_texts(["a small red circle"])).all()
    ran("evaluate", f"--run={run / 'run'}")


def test_word_decoder_targets_are_words_of_captions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = example(NAME)
    monkeypatch.setattr(module, "RECORDS", 3)
    module.main(str(tmp_path / "words.npy"))
    found = np.load(tmp_path / "words.npy", allow_pickle=False)
    assert found.shape == (15, module.BUCKETS)  # five captions a record
    texts = list(make_source(configs.Scenes(count=3)).captions())
    beside = json.loads((tmp_path / "words.texts.json").read_text())
    assert beside == {"count": 15, "sha256": texts_sha256(texts)}
    np.testing.assert_array_equal(found[7], module.buckets_of(texts[7]))
    red, again, blue = (module.buckets_of(x) for x in ("a red cat", "cat a red", "a blue dog"))
    np.testing.assert_array_equal(red, again)
    assert 0 < (red & blue).sum() < red.sum() <= 3


def test_targets_that_do_not_match_the_captions(run: Path, tmp_path: Path) -> None:
    config, flags = run / "own_word_decoder.py", ["--config.fields.words.generated=False"]

    def refused(*flags: str) -> str:
        done = trained(config, tmp_path / "run", *flags, status=2)
        return done.stderr

    def with_file(name: str) -> str:
        return refused(*flags, f"--config.fields.words.file={tmp_path / name}")

    np.save(tmp_path / "few.npy", np.zeros((7, 64), np.uint8))
    assert "few.npy has 7 rows for 500 texts of 'text'" in with_file("few.npy")
    save_store(tmp_path / "others.npy", np.zeros((500, 64), np.uint8), ["a"] * 500)
    assert "others.npy was not computed from 'text' of scenes" in with_file("others.npy")
    np.save(tmp_path / "wide.npy", np.zeros((500, 65), np.uint8))
    assert "wide.npy contains uint8 [500, 65] instead of uint8 [rows, 64]" in with_file("wide.npy")
    assert "config.losses.words.target is 'text', no field of the side 'target'" in refused(
        "--config.losses.words.target=text"
    )
