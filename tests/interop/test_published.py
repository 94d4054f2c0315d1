"""Models that are published as single files."""

import hashlib
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from big_retrieval.errors import UserError
from big_retrieval.interop import published
from big_retrieval.interop.model import import_model
from big_retrieval.interop.read import read
from tests.interop.folders import WORDS

GOLDEN = Path(__file__).parents[1] / "golden" / "data" / "oblique" / "model_m16.npz"
NAME = "clip-mtob/vit-b16_mt-ob-32-16_e32_f32k_2"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site with a small model of 16 class tokens under the published name, and a cache."""
    site = tmp_path / "site"
    site.mkdir()
    with np.load(GOLDEN) as golden:
        arrays = {k.removeprefix("param."): golden[k] for k in golden if k.startswith("param.")}
    np.savez(site / "model.npz", **arrays)
    (site / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    monkeypatch.setenv("BIG_RETRIEVAL_CACHE", str(tmp_path / "cache"))
    return site


@pytest.fixture
def url(place: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **keys):
            super().__init__(*args, directory=str(place), **keys)

        def log_message(self, format, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def file(url: str, path: Path) -> published.File:
    whole = path.read_bytes()
    return published.File(url + path.name, hashlib.sha256(whole).hexdigest(), len(whole))


def publish(url: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = file(url, place / "model.npz"), file(url, place / "vocab.txt")
    monkeypatch.setitem(published.MODELS, NAME, files)


@pytest.mark.parametrize(
    "path", [NAME, f"minogame/{NAME}.pt", NAME.partition("/")[2], f"{NAME.partition('/')[2]}.pt"]
)
def test_find_knows_full_and_short_names(path: str) -> None:
    assert published.find(path) == NAME
    assert published.find("vit-b16") is None


def test_import_downloads_once(
    url: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(url, place, monkeypatch)
    model = import_model(NAME)
    assert "downloading" in capsys.readouterr().out
    assert {tower.class_tokens for tower in model.config.towers.values()} == {16}
    assert model.config.topology == "oblique"
    assert model.encode_texts(["a red b"]).shape == (1, 16, 6)
    shutil.rmtree(place)  # what is in the cache is enough
    assert read(NAME).parts["image"].tower.class_tokens == 16
    assert capsys.readouterr().out == ""


def test_read_rejects_other_bytes(
    url: str, place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(url, place, monkeypatch)
    whole = (place / "model.npz").read_bytes()
    (place / "model.npz").write_bytes(whole[:-9] + b"x" * 9)
    with pytest.raises(UserError, match="differs from the published file"):
        read(NAME)
    assert not list((tmp_path / "cache").rglob("model.npz*"))
    (tmp_path / "cache" / "clip-mtob" / "model.npz").write_bytes(whole[:100])
    with pytest.raises(UserError, match=r"has 100 of .* bytes\. Remove it"):
        read(NAME)


def test_read_reports_a_missing_network(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish("http://127.0.0.1:9/", place, monkeypatch)
    with pytest.raises(UserError, match=r"Cannot download http"):
        read(NAME)


def test_small_checkpoint_has_names_of_released_one() -> None:
    """The golden model has the tensors of the released file, which has 304 with 12 layers each."""
    with np.load(GOLDEN) as golden:
        names = [k.removeprefix("param.") for k in golden if k.startswith("param.")]
    per_layer = sum(".layers.0." in name or ".resblocks.0." in name for name in names)
    layers = len({name.split(".")[3] for name in names if ".layers." in name})
    assert len(names) + (12 - layers) * per_layer == 304
