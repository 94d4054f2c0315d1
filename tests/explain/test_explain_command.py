"""`big-retrieval explain`, and the words of a lexical model in the report."""

from pathlib import Path

import pytest

from big_retrieval import config as configs
from big_retrieval import explain
from big_retrieval.data.build import make_readers
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.inference.load import TrainedModel
from big_retrieval.report import page
from big_retrieval.similarity import TOPOLOGIES
from big_retrieval.train.checkpoint import write_model
from tests.evals.bound import bound
from tests.helpers import in_process
from tests.report import run_folders as folders
from tests.report.test_report import text_of


@pytest.mark.slow
def test_explain_image_of_checkpoint(
    model: TrainedModel, scenes: SceneRecords, scene: Path, tmp_path: Path
) -> None:
    write_model(model, tmp_path / "run")
    text = scenes[0]["captions"][0]
    done = in_process(
        "explain", f"--run={tmp_path / 'run'}", f"--image={scene}", f"--with={text}",
        "--patches=0:2,0:2", "--words=3", f"--out={tmp_path / 'out'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "explain.html").is_file()
    for word, value in explain.strongest(model, scene, "image", 3):
        assert any(line.split()[1:] == [word, f"{value:.4f}"] for line in done.stdout.split("\n"))
    assert "patches 0:2,0:2\n  4 of 16 patches" in done.stdout
    best, _, share = explain.shared(model, text, scene).words[0]
    line = done.stdout.split("shared: ")[1].split("\n")[2].split()
    assert (line[1], line[3]) == (best, f"{100 * share:.1f}%")


@pytest.mark.slow
def test_vocabulary_of_untrained_model() -> None:
    done = in_process(
        "explain", "vocabulary", "--untrained", "--config=configs/vdr_cm_yfcc15m.py:runlocal",
        "--data=evals.test", "--field=text", "--count=20", "--words=3",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100 texts; " in done.stdout, done.stdout  # 20 images with five captions each


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--run is missing"),
        (["--run=x"], "Nothing to explain"),
        (["--run=x", "--text=a", "--map=a"], "--patches and --map need an image"),
        (["--run=x", "--text=a", "--mode=bag"], "compares a query with a document"),
        (["examples", "--run=x", "--data=data"], "--out is missing"),
        (["examples", "--run=x", "--data=data", f"--out={__file__}"], "is a file. Use a folder"),
        (["vocabulary", "--data=data", "--untrained"], "--untrained and --config need each other"),
        (["--run=x", "--untrained"], "flag 'untrained'"),
        (["--run=x", "paint"], "Not a flag: 'paint'"),
    ],
)
def test_explain_rejects_wrong_flags(words: list[str], message: str) -> None:
    done = in_process("explain", *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_report_shows_matched_words(
    model: TrainedModel, scenes: SceneRecords, tmp_path: Path
) -> None:
    task = bound(
        configs.Retrieval(), scenes, dict(make_readers(model.config, model.tokenizer)),
        TOPOLOGIES["inner"], model.encoder,
    )  # fmt: skip
    _, shown = task.examples(model.weights)
    count = 0
    for direction in shown["directions"]:
        for example in (e for group in direction["groups"] for e in group["examples"]):
            for answer in [*example["answers"], *filter(None, [example.get("right")])]:
                text, image = example["query"], answer
                if direction["query"] == "image":
                    text, image = image, text
                shared = explain.shared(model, text["text"], scenes[image["record"]]["image"])
                assert answer["score"] == pytest.approx(shared.score, rel=1e-4)
                assert len(answer["matched"]) == min(5, len(shared.words))
                shares = {word: share for word, _, share in shared.words}
                for word, share in answer["matched"]:
                    assert share == pytest.approx(shares[word], abs=2e-4)
                    count += 1
    assert count > 50
    files = [{"evaluator": "retrieval/test", "step": 40, **shown}]
    run = folders.write(
        tmp_path / "run", config=folders.config(), metrics=folders.rows(), shown=files
    )
    example = shown["directions"][0]["groups"][0]["examples"][0]
    word, share = example["answers"][0]["matched"][0]
    text = text_of(page.write_report(run))
    assert f"{word} {100 * share:.0f}%" in text
    assert text.count("Under each answer, the words that matched") == 1
