"""Grad-CAM of dense models: the command, the pictures and the report."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from big_retrieval import explain
from big_retrieval.data.build import make_readers
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.errors import UserError
from big_retrieval.explain import attributions
from big_retrieval.report import attributions as page_of
from big_retrieval.report import page
from big_retrieval.report.gradcam import Attribution, of_records
from big_retrieval.train.checkpoint import write_model
from tests.explain.conftest import make
from tests.helpers import in_process
from tests.inference.test_gradcam import make as make_dense
from tests.report import run_folders as folders
from tests.report.test_report import check, text_of

ATTACK = "<script>&"
PICTURE = np.full((8, 8, 3), 100, np.uint8)


def attribution(pairs: int) -> Attribution:
    """Of two words and four patches; pair j has the score j."""
    image, words = np.array([[0.0, 2.0], [1.0, 0.0]]), np.array([4.0, 1.0])
    several = [np.repeat(x[None], pairs, axis=0) for x in (image, words)]
    scores = np.arange(pairs, dtype=np.float32)
    return Attribution(
        ATTACK, PICTURE, ("dog", ATTACK), 1.5, scores, image, several[0], words, several[1]
    )


def test_what_is_shown_are_shares_of_the_largest_value(tmp_path: Path) -> None:
    found = attribution(18).describe()
    assert (found["score"], found["words"]) == (1.5, [["dog", 1.0], [ATTACK, 0.25]])
    assert [pair["pair"] for pair in found["pairs"]] == list(range(18, 2, -1))
    assert attribution(1).describe()["pairs"] == []
    colored = page_of.colored(found["words"])
    assert re.findall(r"--s: (\d+)%", colored) == ["100", "25"]
    assert "<script" not in colored
    path = attributions.write([attribution(18), attribution(1)], ["a", "b"], tmp_path, "Title")
    assert check(path).pictures == 18 + 2
    names = sorted(file.name for file in tmp_path.iterdir())
    assert len(names) == 18 + 2 + 1
    assert {"01-whole.png", "01-pair-18.png", "02-picture.png"} <= set(names)
    shown = attributions.lines(attribution(2), "a.png", 1).split("\n")
    assert shown[0] == f"{ATTACK} × a.png"
    assert shown[3:] == [
        "    1  dog  1.00",
        "  the patch with the largest relevance: row 0, column 1",
    ]


def test_a_lexical_model_is_explained_by_its_words(scenes: SceneRecords) -> None:
    with pytest.raises(UserError, match="has a lexical head"):
        explain.gradcam(make(), "a red ball", scenes[0]["image"])


@pytest.mark.slow
def test_the_command_and_the_report_of_a_dense_model(scenes: SceneRecords, tmp_path: Path) -> None:
    model = make_dense({})
    run, file, out = tmp_path / "run", tmp_path / "scene.png", tmp_path / "out"
    write_model(model, run)
    Image.fromarray(scenes[0]["image"]).save(file)
    text = scenes[0]["captions"][0]
    found = explain.gradcam(model, text, file)
    assert found.tokens == tuple(text.split())
    assert found.image_pairs.shape == (2, 4, 4)
    assert found.word_pairs.shape == (2, len(found.tokens))
    given = f"--run={run}", f"--text={text}", f"--image={file}"
    done = in_process("explain", *given, f"--out={out}")
    assert done.returncode == 0, done.stderr
    best = found.tokens[int(found.words.argmax())]
    assert re.search(rf"^    1  {best} +1\.00$", done.stdout, re.MULTILINE), done.stdout
    assert check(out / "explain.html").pictures == 4
    for flags, message in (
        (given[:2], "Dense models are explained for a text and an image"),
        ([*given, "--map=ball"], "--patches, --map and --mode need a lexical model"),
        ([*given[:1], "--text= ", given[2]], "The text to explain is empty"),
    ):
        done = in_process("explain", *flags)
        assert done.returncode == 2
        assert message in done.stderr
    readers = make_readers(model.config, model.tokenizer)
    seen = of_records(model.encoder, model.weights, scenes, readers, ("image", "text"))
    assert [each["record"] for each in seen] == [0, 14, 29]
    again = explain.gradcam(model, scenes[0]["captions"][0], scenes[0]["image"])
    assert seen[0]["score"] == pytest.approx(again.score, abs=1e-4)
    shown = {"evaluator": "retrieval/test", "step": 40, "directions": [], "attributions": seen}
    folder = folders.write(
        tmp_path / "report", config=folders.config(), metrics=folders.rows(), shown=[shown]
    )
    text = text_of(page.write(folder))
    assert "Parts of the score" in text
    assert "record 14" in text
