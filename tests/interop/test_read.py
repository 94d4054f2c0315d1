"""Weights that cannot be read are errors, and nothing in them is run."""

import fnmatch
import json
import os
import pickle
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import huggingface_hub
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from big_retrieval.errors import UserError
from big_retrieval.interop.files import read_arrays, weights_file
from big_retrieval.interop.read import read
from tests.interop.folders import DATA, change


class Code:
    """An object whose unpickling leaves a trace."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


class FakeTorch(types.ModuleType):
    """A `torch` that unpickles unless it must load weights only."""

    def load(self, path: Path, **keys: Any) -> Any:
        if keys.get("weights_only") is not True:
            pickle.loads(Path(path).read_bytes())
        raise pickle.UnpicklingError("Weights only load failed")


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_read_runs_no_pickled_code(
    name: str, fake: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fake:
        monkeypatch.setitem(sys.modules, "torch", FakeTorch("torch"))
    trace = tmp_path / "trace"
    (tmp_path / name).write_bytes(pickle.dumps({"weight": Code(trace)}))
    with pytest.raises(UserError, match=r"None of it was run|needs PyTorch"):
        read(str(tmp_path / name))
    assert not trace.exists()


def test_read_runs_no_code_of_torch_files(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path, trace = tmp_path / "model.pt", tmp_path / "trace"
    torch.save({"weight": Code(trace)}, path)
    with pytest.raises(UserError, match=r"None of it was run"):
        read(str(path))
    assert not trace.exists()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(path))
    with pytest.raises(UserError, match=r"TorchScript.* None of it was run"):
        read_arrays(path)


def test_read_rejects_pickled_arrays_in_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", weight=np.array([{"a": 1}], object))
    with pytest.raises(UserError, match=r"model.npz"):
        read(str(tmp_path / "model.npz"))


def test_read_names_tensors_without_plain_numbers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    strange = {
        "eight bits": torch.zeros(3).to(torch.float8_e4m3fn),
        "no storage": torch.zeros(3, device="meta"),
        "conjugate": torch.zeros(3, dtype=torch.complex64).conj(),
        "unfolds": torch.zeros(1).expand(10**15),
    }
    for name, tensor in strange.items():
        torch.save({name: tensor}, tmp_path / "model.pt")
        with pytest.raises(UserError, match=rf"Cannot read {name} of .*model\.pt \("):
            read_arrays(tmp_path / "model.pt")


@pytest.mark.parametrize("name", ["bert", "resnet_small"])
def test_torch_files_are_read_like_safetensors(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    expected = load_file(DATA / name / "model.safetensors")
    state = {f"module.{key}": torch.tensor(x) for key, x in expected.items()}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "model.pt")
    arrays = read_arrays(tmp_path / "model.pt")
    assert set(arrays) == set(expected)
    for key, array in arrays.items():
        np.testing.assert_array_equal(array, expected[key])


def test_half_and_bfloat16_become_float32(tmp_path: Path) -> None:
    values = np.arange(4, dtype=np.float32)
    save_file({"a": values.astype(np.float16)}, tmp_path / "half.safetensors")
    raw = values.astype(ml_dtypes.bfloat16).tobytes()
    header = json.dumps({"a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
    content = len(header).to_bytes(8, "little") + header + raw
    (tmp_path / "brain.safetensors").write_bytes(content)
    for name in ("half", "brain"):
        array = read_arrays(tmp_path / f"{name}.safetensors")["a"]
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, values)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_read_rejects_cut_files(share: float, tmp_path: Path) -> None:
    data = (DATA / "bert" / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[: int(share * len(data))])
    with pytest.raises(UserError, match=r"model\.safetensors as safetensors"):
        read(str(tmp_path / "model.safetensors"))


def test_bare_files_of_clip_but_not_of_bert_determine_the_heads(tmp_path: Path) -> None:
    shutil.copy(DATA / "bert" / "model.safetensors", tmp_path)
    with pytest.raises(UserError, match=r"how many attention heads BERT has.*config.json"):
        read(str(tmp_path / "model.safetensors"))
    shutil.copy(DATA / "open_clip" / "open_clip_model.safetensors", tmp_path / "clip.safetensors")
    parts = read(str(tmp_path / "clip.safetensors")).parts
    assert {name: part.tower.depth for name, part in parts.items()} == {"image": 2, "text": 2}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other.safetensors", "other.safetensors.*some.weight"),
        ("empty", "empty has no weights"),
        ("notes.txt", "notes.txt is not a file of weights"),
        ("lost.safetensors", "No such file or folder: .*lost.safetensors"),
    ],
)
def test_read_rejects_unknown_models_and_paths(name: str, message: str, tmp_path: Path) -> None:
    save_file({"some.weight": np.zeros(3, np.float32)}, tmp_path / "other.safetensors")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match=message):
        read(str(tmp_path / name))


def test_read_rejects_an_empty_path() -> None:
    with pytest.raises(UserError, match="path of the weights is empty"):
        read("")


def refuse(*args: Any, **keys: Any) -> Any:
    raise OSError("no network")


def test_read_reports_a_name_that_the_hub_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    with pytest.raises(UserError, match=r"someone/some-model.*no network"):
        read("someone/some-model")


def test_hub_names_are_read_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: str(DATA / "bert"))
    assert read("hf-hub:someone/bert").origin == "someone/bert"


@pytest.mark.parametrize("has_plain", [True, False])
def test_torch_files_of_the_hub_are_only_loaded_without_safetensors(
    has_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ["config.json", "pytorch_model.bin", *["model.safetensors"] * has_plain]
    patterns: list[str] = []

    def download(name: str, *, local_files_only: bool = False, allow_patterns: Any = ()) -> str:
        if local_files_only:
            raise OSError("not in the cache")
        patterns.extend(allow_patterns)
        return str(DATA / "bert")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *a, **k: None)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *a, **k: files)
    assert read("someone/bert").origin == "someone/bert"
    matched = {f for f in files if any(fnmatch.fnmatch(f, pattern) for pattern in patterns)}
    assert matched == set(files) - ({"pytorch_model.bin"} if has_plain else set())


@pytest.mark.parametrize("content", ["{", "[" * 100_000])
def test_read_rejects_damaged_json(content: str, tmp_path: Path) -> None:
    shutil.copytree(DATA / "bert", tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config.json is not readable JSON"):
        read(str(tmp_path))


def test_read_reports_missing_layers_and_unknown_names(tmp_path: Path) -> None:
    shutil.copytree(DATA / "bert", tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model.safetensors"
    arrays = load_file(path)
    save_file({k: x for k, x in arrays.items() if "word_embeddings" not in k}, path)
    with pytest.raises(UserError, match=r"BERT, but lacks its token_embedding"):
        read(str(tmp_path))
    save_file({**arrays, "adapter.weight": np.zeros(2, np.float32)}, path)
    assert read(str(tmp_path)).unknown == ["adapter.weight"]


def test_read_joins_shards(tmp_path: Path) -> None:
    shutil.copytree(DATA / "bert", tmp_path, dirs_exist_ok=True)
    arrays = load_file(tmp_path / "model.safetensors")
    shards = {name: f"part-{k % 2}.safetensors" for k, name in enumerate(sorted(arrays))}
    for file in set(shards.values()):
        save_file({n: x for n, x in arrays.items() if shards[n] == file}, tmp_path / file)
    (tmp_path / "model.safetensors").unlink()
    index = tmp_path / "model.safetensors.index.json"
    change(index, weight_map=shards)
    assert set(read(str(tmp_path)).parts) == {"text"}
    for weight_map, message in (
        ({**shards, "lost": "part-0.safetensors"}, "its files lack 'lost'"),
        ([1], "no weight_map"),
        ({"a": 3}, "no weight_map"),
        ({"a": ["part-0.safetensors"]}, "no weight_map"),
        ({"a": "../part-0.safetensors"}, r"not in its folder\. Not opened"),
    ):
        change(index, weight_map=weight_map)
        with pytest.raises(UserError, match=message):
            read(str(tmp_path))


def test_weights_file_prefers_open_clips_with_its_settings(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "open_clip_model.safetensors"):
        (tmp_path / name).touch()
    assert weights_file(tmp_path).name == "model.safetensors"
    (tmp_path / "open_clip_config.json").touch()
    assert weights_file(tmp_path).name == "open_clip_model.safetensors"
