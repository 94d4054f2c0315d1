"""Grad-CAM of dense models: command, pictures and report."""

import re
from pathlib import Path

import numpy as np
import pytest

from big_retrieval import explain
from big_retrieval.data.build import make_readers
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.explain import attributions
from big_retrieval.inference.load import TrainedModel
from big_retrieval.report import attributions as page_of
from big_retrieval.report import page
from big_retrieval.report.gradcam import Attribution, of_records
from big_retrieval.train.checkpoint import write_model
from tests.helpers import in_process, user_error
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


def test_page_shows_shares_of_largest_value(tmp_path: Path) -> None:
    content = attribution(18).describe()
    assert (content["score"], content["words"]) == (1.5, [["dog", 1.0], [ATTACK, 0.25]])
    assert [pair["pair"] for pair in content["pairs"]] == list(range(18, 2, -1))
    assert attribution(1).describe()["pairs"] == []
    colored = page_of.colored(content["words"])
    assert re.findall(r"--s: (\d+)%", colored) == ["100", "25"]
    assert "<script" not in colored
    path = attributions.write_attributions(
        [attribution(18), attribution(1)], ["a", "b"], tmp_path, "Title"
    )
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


def test_gradcam_rejects_lexical_model(model: TrainedModel, scenes: SceneRecords) -> None:
    with user_error("has a lexical head"):
        explain.gradcam(model, "a red ball", scenes[0]["image"])
    with user_error("no text field 'nowhere'"):
        explain.gradcam(model, "a red ball", scenes[0]["image"], text_field="nowhere")


@pytest.mark.slow
def test_command_and_report_of_dense_model(
    scenes: SceneRecords, scene: Path, tmp_path: Path
) -> None:
    model, run, out = make_dense({}), tmp_path / "run", tmp_path / "out"
    write_model(model, run)
    text = scenes[0]["captions"][0]
    result = explain.gradcam(model, text, scene)
    assert result.tokens == tuple(text.split())
    assert result.image_pairs.shape == (2, 4, 4)
    assert result.word_pairs.shape == (2, len(result.tokens))
    flags = f"--run={run}", f"--text={text}", f"--image={scene}"
    done = in_process("explain", *flags, f"--out={out}")
    assert done.returncode == 0, done.stderr
    best = result.tokens[int(result.words.argmax())]
    assert re.search(rf"^    1  {best} +1\.00$", done.stdout, re.MULTILINE), done.stdout
    assert check(out / "explain.html").pictures == 4
    for wrong, message in (
        (flags[:2], "Dense models are explained for a text and an image"),
        ([*flags, "--map=ball"], "--patches, --map and --mode need a lexical model"),
        ([*flags[:1], "--text= ", flags[2]], "The text to explain is empty"),
    ):
        done = in_process("explain", *wrong)
        assert done.returncode == 2
        assert message in done.stderr
    readers = make_readers(model.config, model.tokenizer)
    seen = of_records(model.encoder, model.weights, scenes, readers, ("image", "text"))
    assert [each["record"] for each in seen] == [0, 14, 29]
    assert seen[0]["score"] == pytest.approx(result.score, abs=1e-4)
    shown = {"evaluator": "retrieval/test", "step": 40, "directions": [], "attributions": seen}
    folder = folders.write(
        tmp_path / "report", config=folders.config(), metrics=folders.rows(), shown=[shown]
    )
    text = text_of(page.write_report(folder))
    assert "Parts of the score" in text
    assert "record 14" in text
