"""examples/letters.py and bag_of_words.py: parts that a model is made of, from a foreign folder."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import schema
from big_retrieval.data.fields.reader import Tools
from big_retrieval.errors import UserError
from big_retrieval.inference.load import load
from tests.examples.helpers import assert_evaluated_alike, ran, without_own_parts
from tests.helpers import ROOT, results

pytestmark = pytest.mark.slow

TAGS = ("bag_of_words", "letters", "dense_layer", "two_layers")
OWN = """

_example = get_config


def get_config(arg=""):
    c = _example(arg)
    c.unlock()
    c.total_steps, c.batch_size, c.log_every, c.checkpoint_every, c.report = 4, 16, 1, 2, False
    c.tokenizer.vocab_size, c.data.count = 64, 100
    c.towers.image.update(width=16, depth=1, heads=2, mlp=16, patch=16)
    c.towers.letters = recipe.entry(Dense(), width=8)
    c.towers.text = recipe.entry(BagOfWords(), width=64, words=32)
    for field in (c.fields.image, c.fields.text):
        field.head = recipe.entry(TwoLayers(dim=4, inner=16))
    c.fields.letters = recipe.entry(Letters(), head=TwoLayers(dim=4, inner=8))
    c.towers.vectors = recipe.entry(Dense(), width=8)
    drawn = config.ArrayField(shape=(3,), column="vector", generated=True)
    head = config.Projection(dim=4)
    c.fields.vector = recipe.entry(drawn, side="query", tower="vectors", head=head)
    c.fields.goal = recipe.entry(drawn, column="goal")
    c.evals = {
        query: recipe.entry(config.Retrieval(), query=query) for query in ("letters", "vector")
    }
    c.evals.letters.data.count = c.evals.vector.data.count = 16
    return c
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended half-way and was resumed, started from another folder."""
    folder = tmp_path_factory.mktemp("own")
    files = [ROOT / "examples" / f"{name}.py" for name in ("bag_of_words", "letters")]
    body = "".join(file.read_text() for file in files) + OWN
    for tag in TAGS:
        given, own = (f'type: Literal["{x}"] = "{x}"' for x in (tag, f"own_{tag}"))
        assert given in body
        body = body.replace(given, own)
    (folder / "own_parts.py").write_text(body)
    flags = [f"--config={folder / 'own_parts.py'}:runlocal", f"--workdir={folder / 'run'}"]
    ran("main", *flags, "--config.stop_after=2")
    ran("main", *flags)
    return folder


def test_custom_part_trains_resumes_and_is_noted(run: Path) -> None:
    found = results(run / "run")
    assert found["steps"] == 4
    assert 0 <= found["retrieval/letters/letters_to_image/R@1"] <= 1
    assert 0 <= found["retrieval/vector/vector_to_image/R@1"] <= 1
    saved = json.loads((run / "run" / "config.json").read_text())
    assert saved["fields"]["letters"]["scale"] == 1.0
    assert saved["towers"]["text"] == {"type": "own_bag_of_words", "width": 64, "words": 32}
    kinds = ("tower", "field", "tower", "head")
    parts = {f"{kind}/own_{tag}" for kind, tag in zip(kinds, TAGS, strict=True)}
    assert saved["plugins"].keys() == parts
    assert {noted["file"] for noted in saved["plugins"].values()} == {
        str((run / "own_parts.py").resolve())
    }


def test_resume_names_difference_of_custom_part(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_own_parts(monkeypatch, "field", "tower", "head")
    done = ran("main", "--config=configs/quickstart.py", f"--workdir={run / 'run'}", status=2)
    assert f"Cannot resume {run / 'run'}: config." in done.stderr


def test_load_of_custom_part_needs_its_file(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_own_parts(monkeypatch, "field", "tower", "head")
    words = "config.towers.letters is of the type 'own_dense_layer', which "
    with pytest.raises(UserError, match=re.escape(words)):
        load(run / "run")
    model = load(run / "run", plugins=[run / "own_parts.py"])
    texts = model.encode_texts(["a red circle", "a blue square", "a red circle"])
    assert texts.shape == (3, 1, 4)
    np.testing.assert_array_equal(texts[0], texts[2])
    letters = model.encode(["a red circle", ["a red", " circle"], "a blue square"], "letters")
    np.testing.assert_array_equal(letters[0], letters[1])
    assert np.abs(letters[0] - letters[2]).max() > 0
    assert model.score(texts, letters).shape == (3, 3)
    vectors = model.encode([[1.0, 2.0, 3.0], np.array([1, 2, 3]), [0.0, 0.0, 1.0]], "vector")
    np.testing.assert_array_equal(vectors[0], vectors[1])
    with pytest.raises(UserError, match="'vector' has the wrong shape"):
        model.encode([[1.0, 2.0]], "vector")
    with pytest.raises(UserError, match=r"no field 'goal'\. .*image, letters, te"):
        model.encode([[1.0, 2.0, 3.0]], "goal")


def test_load_without_file_of_custom_target_succeeds(run: Path) -> None:
    saved = json.loads((run / "run" / "config.json").read_text())
    saved["fields"]["aim"] = {"type": "nowhere", "side": "target", "number": 3}
    saved["plugins"]["field/nowhere"] = {"module": "gone", "file": "gone.py", "sha256": ""}
    config = configs.load_saved(saved)
    assert "aim" not in config.encoded
    assert schema.to_plain(config)["fields"]["aim"] == saved["fields"]["aim"]
    with pytest.raises(
        UserError,
        match=r"fields\.aim is of the type 'nowhere', which gone\.py defines",
    ):
        config.fields["aim"].build(Tools())


def test_evaluate_accepts_file_of_custom_part(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_own_parts(monkeypatch, "field", "tower", "head")
    done = ran("evaluate", f"--run={run / 'run'}", status=2)
    assert f"{run / 'own_parts.py'} defines: give this file as --plugins=FILE" in done.stderr
    plugins = f"--plugins={run / 'own_parts.py'}"
    done = ran("evaluate", f"--run={run / 'run'}", plugins)
    assert_evaluated_alike(run / "run", run / "run")


def test_plan_counts_custom_part_by_tracing(run: Path, tmp_path: Path) -> None:
    flags = [f"--config={run / 'own_parts.py'}:runlocal", f"--workdir={tmp_path}"]
    ran("main", *flags, "--plan")
    plan = json.loads((tmp_path / "plan.json").read_text())
    letters = 2 * 26 * 8 + 2 * 8 * 8 + 2 * 8 * 4  # tower, two layers of the head
    vector = 2 * 3 * 8 + 2 * 8 * 4
    text = 2 * 32 * 64 + 2 * 64 * 16 + 2 * 16 * 4
    patches, width = 4, 16
    layer = 2 * 5 * width * (4 * width + 2 * 16) + 4 * 5 * 5 * width
    image = 2 * patches * 3 * 16 * 16 * width + layer + 2 * 16 * 16 + 2 * 16 * 4
    assert plan["flops_by_part"]["towers"] == 3 * 16 * (letters + vector + text + image)


MISTAKES = [
    ("--config.fields.letters.scale=-1.0", "config.fields.letters.scale is -1.0; it must be po"),
    ("--config.fields.letters.tower=text", "whose type 'own_bag_of_words' cannot read fields of"),
    ("--config.evals.vector.query=goal", "config.evals.vector.query is 'goal', which is a target"),
]


@pytest.mark.parametrize(("flag", "words"), MISTAKES)
def test_check_rejects_keys_of_custom_part(run: Path, flag: str, words: str) -> None:
    flags = [f"--config={run / 'own_parts.py'}:runlocal", "--workdir=/nowhere"]
    done = ran("main", *flags, flag, status=2)
    assert words in done.stderr
