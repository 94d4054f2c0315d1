"""Exports go to a hub and come back: the client is the real one, the hub is hub_server.py."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard, constants

import big_retrieval
from big_retrieval.errors import UserError
from big_retrieval.exporting import certificate as certificates
from big_retrieval.exporting.certificate import FAILED
from big_retrieval.exporting.export import write
from big_retrieval.exporting.push import push, upload
from big_retrieval.interop.model import import_model
from tests.exporting import hub_server
from tests.helpers import in_process
from tests.interop.test_model import with_words

NAME = "someone/red-circles"
TEXTS = ["a red circle", "", "two dogs"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_server.Hub]:
    """A hub that the client asks, with an empty cache."""
    with hub_server.serving() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        template = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
        monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
        yield server


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of transformers, whose certificate is not complete."""
    place = tmp_path_factory.mktemp("exported")
    model = import_model(str(with_words("hf_clip_quick", place)))
    write(model, to="transformers", out=place / "out")
    return place / "out"


@pytest.mark.slow
def test_what_was_pushed_is_imported_by_its_name(hub: hub_server.Hub, tmp_path: Path) -> None:
    model = import_model(str(with_words("hf_clip_quick", tmp_path)))
    address = push(model, NAME, to="transformers", license="mit")
    assert address == f"{hub.address}/{NAME}"
    again = import_model(NAME)
    np.testing.assert_array_equal(again.encode_texts(TEXTS), model.encode_texts(TEXTS))
    image = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    np.testing.assert_array_equal(again.encode_images([image]), model.encode_images([image]))
    card = ModelCard(hub.files[NAME]["README.md"].decode()).data.to_dict()
    assert card["license"] == "mit"
    assert card["pipeline_tag"] == "zero-shot-image-classification"
    assert {"certificate.json", "model.safetensors", "tokenizer.json"} <= hub.files[NAME].keys()


@pytest.mark.slow
def test_the_command(hub: hub_server.Hub, exported: Path, tmp_path: Path) -> None:
    done = in_process("push", f"--folder={exported}", f"--to={NAME}")
    assert done.returncode == 0, done.stderr
    assert f"uploaded to {hub.address}/{NAME}" in done.stdout
    assert "the export is unverified" in done.stderr
    done = in_process("import", f"--from={NAME}", f"--out={tmp_path / 'back'}")
    assert done.returncode == 0, done.stderr
    assert big_retrieval.load(tmp_path / "back").encode_texts(TEXTS).shape[0] == 3
    # From a run, with the first target that can hold the model.
    done = in_process("push", f"--run={tmp_path / 'back'}", "--to=someone/other")
    assert done.returncode == 0, done.stderr
    assert "open_clip_config.json" in hub.files["someone/other"]


def test_what_a_hub_refuses(
    hub: hub_server.Hub, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="rights to create"):
        upload(exported, "others/model")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match=r"Invalid username.*hf auth login"):
        upload(exported, NAME)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match="hf auth login"):
        upload(exported, NAME)
    with pytest.raises(UserError, match="'nobody/nothing' is neither a file or folder nor"):
        import_model("nobody/nothing")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="Check the network"):
        upload(exported, NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="offline|OFFLINE"):
        upload(exported, NAME)
    assert not hub.files


def test_what_is_private_stays_so(hub: hub_server.Hub, exported: Path) -> None:
    hub.files["someone/seen"] = {}
    with pytest.raises(UserError, match=r"someone/seen exists and is public"):
        upload(exported, "someone/seen", private=True)
    assert hub.files["someone/seen"] == {}
    upload(exported, NAME, private=True)
    upload(exported, NAME, private=True)
    assert hub.private == {NAME}
    assert "certificate.json" in hub.files[NAME]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--run is missing"),
        (["--run=x"], "--to is missing"),
        (["--run=nowhere", f"--to={NAME}"], "nowhere is no folder"),
        (["--folder={exported}", "--to=model"], "Give OWNER/NAME"),
        (["--folder={exported}", "--to=some one/model"], "Invalid --to"),
        (["--folder={exported}", "--run=x", f"--to={NAME}"], "leave --run out"),
        (["--folder=nowhere", f"--to={NAME}"], "nowhere has no certificate.json"),
    ],
)
def test_bad_input(exported: Path, flags: list[str], words: str) -> None:
    done = in_process("push", *(flag.format(exported=exported) for flag in flags))
    assert done.returncode == 2
    assert words in done.stderr, done.stderr


def test_an_export_that_failed_is_not_uploaded(exported: Path, tmp_path: Path) -> None:
    failed = dataclasses.replace(certificates.read(exported), status=FAILED, reason="differs")
    for path in exported.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    failed.write(tmp_path)
    with pytest.raises(UserError, match="Not uploaded: .* failed: differs"):
        upload(tmp_path, NAME)
