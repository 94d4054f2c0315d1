"""Exports are pushed to a hub, which is a folder here, and imported from it."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import ModelCard, constants, errors

import big_retrieval
from big_retrieval.errors import UserError
from big_retrieval.exporting import certificate as certificates
from big_retrieval.exporting.certificate import FAILED
from big_retrieval.exporting.export import write_export
from big_retrieval.exporting.push import push, upload
from big_retrieval.interop.model import import_model
from tests.helpers import in_process
from tests.interop.folders import with_words

NAME = "someone/red-circles"
TEXTS = ["a red circle", "", "two dogs"]


@dataclasses.dataclass
class Hub:
    """Replaces the client of the hub: models are in a folder, private ones in a set of names."""

    folder: Path
    endpoint: str = "https://hub.test"
    private: set[str] = dataclasses.field(default_factory=set)

    def create_repo(self, name: str, *, private: bool | None, exist_ok: bool) -> None:
        assert exist_ok
        if private and not (self.folder / name).exists():
            self.private.add(name)
        (self.folder / name).mkdir(parents=True, exist_ok=True)

    def model_info(self, name: str, **more: Any) -> Any:
        return huggingface_hub.ModelInfo(id=name, private=name in self.private)

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
        assert "by big_retrieval" in commit_message
        shutil.copytree(folder_path, self.folder / repo_id, dirs_exist_ok=True)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **more: str(hub.folder / name)
    )
    return hub


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unverified export to transformers."""
    place = tmp_path_factory.mktemp("exported")
    model = import_model(str(with_words("hf_clip_quick", place)))
    write_export(model, to="transformers", out=place / "out")
    return place / "out"


@pytest.mark.slow
def test_pushed_model_is_imported_by_its_name(hub: Hub, tmp_path: Path) -> None:
    model = import_model(str(with_words("hf_clip_quick", tmp_path)))
    address = push(model, NAME, to="transformers", license="mit")
    assert address == f"{hub.endpoint}/{NAME}"
    again = import_model(NAME)
    np.testing.assert_array_equal(again.encode_texts(TEXTS), model.encode_texts(TEXTS))
    image = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    np.testing.assert_array_equal(again.encode_images([image]), model.encode_images([image]))
    card = ModelCard((hub.folder / NAME / "README.md").read_text()).data.to_dict()
    assert card["license"] == "mit"
    assert card["pipeline_tag"] == "zero-shot-image-classification"


@pytest.mark.slow
def test_push_command(hub: Hub, exported: Path, tmp_path: Path) -> None:
    done = in_process("push", f"--folder={exported}", f"--to={NAME}")
    assert done.returncode == 0, done.stderr
    assert f"uploaded to {hub.endpoint}/{NAME}" in done.stdout
    assert "the export is unverified" in done.stderr
    done = in_process("import", f"--from={NAME}", f"--out={tmp_path / 'back'}")
    assert done.returncode == 0, done.stderr
    assert big_retrieval.load(tmp_path / "back").encode_texts(TEXTS).shape[0] == 3
    # From a run, with the first target that can hold the model.
    done = in_process("push", f"--run={tmp_path / 'back'}", "--to=someone/other")
    assert done.returncode == 0, done.stderr
    assert (hub.folder / "someone" / "other" / "open_clip_config.json").is_file()


def test_upload_reports_a_hub_that_cannot_be_reached(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert issubclass(errors.HfHubHTTPError, errors.HTTPError)  # pyright: ignore
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_test")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    for offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        with pytest.raises(UserError, match=r"Cannot upload to .*someone/red-circles.*HF_TOKEN"):
            upload(exported, NAME)


def test_upload_keeps_private_models_private(hub: Hub, exported: Path) -> None:
    seen = hub.folder / "someone" / "seen"
    seen.mkdir(parents=True)
    with pytest.raises(UserError, match="someone/seen exists and is public"):
        upload(exported, "someone/seen", private=True)
    assert not list(seen.iterdir())
    upload(exported, NAME, private=True)
    upload(exported, NAME, private=True)
    assert hub.private == {NAME}
    assert (hub.folder / NAME / "certificate.json").is_file()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([f"--to={NAME}"], "--run is missing"),
        (["--run=x"], "--to is missing"),
        (["--run=nowhere", f"--to={NAME}"], "No folder nowhere"),
        (["--folder={exported}", "--to=model"], "Give OWNER/NAME"),
        (["--folder={exported}", "--to=some one/model"], "Invalid --to"),
        (["--folder={exported}", "--run=x", f"--to={NAME}"], "Remove --run"),
        (["--folder=nowhere", f"--to={NAME}"], "nowhere has no certificate.json"),
    ],
)
def test_push_command_rejects_bad_input(exported: Path, flags: list[str], words: str) -> None:
    done = in_process("push", *(flag.format(exported=exported) for flag in flags))
    assert done.returncode == 2
    assert words in done.stderr, done.stderr


def test_upload_rejects_failed_exports(exported: Path, tmp_path: Path) -> None:
    failed = dataclasses.replace(certificates.read(exported), status=FAILED, reason="differs")
    shutil.copytree(exported, tmp_path, dirs_exist_ok=True)
    failed.write(tmp_path)
    with pytest.raises(UserError, match=r"Not uploaded: .* failed: differs"):
        upload(tmp_path, NAME)
