"""The target `onnx` without ONNX libraries: requests for their process, and errors.

tests/interop/export_all.py has the libraries write and run the files.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from big_retrieval.errors import UserError
from big_retrieval.exporting import onnx
from big_retrieval.exporting.export import write_export
from big_retrieval.exporting.library import Answer, Job
from big_retrieval.inference.load import TrainedModel
from tests.exporting.test_configs import random_model

MISSING = Answer(
    problem="PY cannot import the target library (No module named 'onnx')", missing=True
)


@pytest.fixture(scope="module")
def model() -> TrainedModel:
    """Images by a ResNet, and whole words by a GRU."""
    return random_model("ltd_f30k")


def answering(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> list[Job]:
    """Replaces the other process by an answer; returns its jobs."""
    asked: list[Job] = []

    def ask(jobs: Sequence[Job], python: str) -> list[Answer]:
        asked.extend(jobs)
        assert (jobs[0].folder / "model.py").is_file()
        return [answer]

    monkeypatch.setattr(onnx, "ask", ask)
    return asked


@pytest.mark.slow  # compiles the ResNet
def test_onnx_export_has_encoders_and_scores(
    model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answering(monkeypatch, Answer())
    out = tmp_path / "out"
    write_export(model, to="onnx", out=out)
    graphs: dict[str, Any] = {graph["file"]: graph for graph in asked[0].request["graphs"]}
    assert graphs["image.onnx"]["arrays"] == [("pixels", "uint8", ["batch", 32, 32, 3])]
    # Texts of a GRU are of one length, to which the program fills them up.
    assert graphs["text.onnx"]["arrays"] == [
        ("ids", "int64", ["batch", 32]),
        ("mask", "bool", ["batch", 32]),
    ]
    assert graphs["scores.onnx"]["arrays"][1] == ("b", "float32", ["columns", 1, 64])
    source = (out / "encode.py").read_text()
    assert "'text': {'length': 32, 'fill': True}" in source
    assert "torch" not in source
    assert "from encode import OnnxModel" in (out / "README.md").read_text()
    assert {path.name for path in out.iterdir()} == {
        "README.md", "big_retrieval.json", "certificate.json", "certificate.npz", "encode.py",
        "tokenizer.json",
    }  # fmt: skip
    compile(source, "encode.py", "exec")


def test_export_leaves_nothing_without_onnx_libraries(
    model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, MISSING)
    with pytest.raises(UserError, match=r"No module named 'onnx'.*needs torch, onnx, onnxscript"):
        write_export(model, to="onnx", out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_fields_with_the_same_encoder_share_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answering(monkeypatch, MISSING)
    with pytest.raises(UserError):
        write_export(random_model("emoji_gcl"), to="onnx", out=tmp_path / "out")
    graphs = {graph["file"]: graph["method"] for graph in asked[0].request["graphs"]}
    assert graphs == {
        "image.onnx": "embed_image", "query.onnx": "embed_query", "scores.onnx": "scores"
    }  # fmt: skip
    texts = asked[0].request["graphs"][0]["arrays"]
    assert texts[0] == ("ids", "int64", ["batch", "length"])
