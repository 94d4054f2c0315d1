"""Weights that cannot be read: one sentence each, and nothing in them is run."""

import fnmatch
import json
import os
import pickle
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from big_retrieval.errors import UserError
from big_retrieval.interop.files import read_arrays, weights_file
from big_retrieval.interop.read import read

DATA = Path(__file__).parent / "data"


class Code:
    """An object whose unpickling leaves a trace."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("name", ["model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_pickled_code_is_not_run(name: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    (tmp_path / name).write_bytes(pickle.dumps({"weight": Code(trace)}))
    with pytest.raises(UserError, match=r"nothing of it was run|needs PyTorch"):
        read(str(tmp_path / name))
    assert not trace.exists()


def test_code_in_a_torch_file_is_not_run(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    trace = tmp_path / "trace"
    torch.save({"weight": Code(trace)}, tmp_path / "model.pt")
    with pytest.raises(UserError, match=r"as tensors .* nothing of it was run"):
        read(str(tmp_path / "model.pt"))
    assert not trace.exists()


def test_pickled_arrays_in_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", weight=np.array([{"a": 1}], object))
    with pytest.raises(UserError, match=r"as .npz file of plain arrays"):
        read(str(tmp_path / "model.npz"))


def test_tensors_without_plain_numbers_are_named(tmp_path: Path) -> None:
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


def test_programs_of_torch_are_not_run(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(tmp_path / "model.pt"))
    with pytest.raises(UserError, match=r"TorchScript.* nothing of it was run"):
        read_arrays(tmp_path / "model.pt")


@pytest.mark.parametrize("name", ["bert", "resnet_small"])
def test_torch_file_is_read_like_safetensors(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    arrays = load_file(DATA / name / "model.safetensors")
    state = {f"module.{key}": torch.tensor(x) for key, x in arrays.items()}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "model.pt")
    found = read_arrays(tmp_path / "model.pt")
    assert set(found) == set(arrays)
    for key, array in arrays.items():
        np.testing.assert_array_equal(found[key], array)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_cut_files(share: float, tmp_path: Path) -> None:
    data = (DATA / "bert" / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[: int(share * len(data))])
    with pytest.raises(UserError, match=r"as safetensors .*Download it again"):
        read(str(tmp_path / "model.safetensors"))


def folder(name: str, tmp_path: Path) -> Path:
    """A copy of a model folder, to be spoilt."""
    return Path(shutil.copytree(DATA / name, tmp_path / name))


def spoil(path: Path, **changes: Any) -> None:
    """Changes keys of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_bare_file_of_bert_does_not_tell_its_heads(tmp_path: Path) -> None:
    shutil.copy(DATA / "bert" / "model.safetensors", tmp_path)
    with pytest.raises(UserError, match=r"how many attention heads BERT has.*config.json"):
        read(str(tmp_path / "model.safetensors"))


def test_a_bare_file_of_clip_tells_enough(tmp_path: Path) -> None:
    shutil.copy(DATA / "open_clip" / "open_clip_model.safetensors", tmp_path / "clip.safetensors")
    parts = read(str(tmp_path / "clip.safetensors")).parts
    assert {name: part.tower.depth for name, part in parts.items()} == {"image": 2, "text": 2}


def test_unknown_models_and_paths(tmp_path: Path) -> None:
    save_file({"some.weight": np.zeros(3, np.float32)}, tmp_path / "other.safetensors")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    for path, words in {
        tmp_path / "other.safetensors": "no model of a known kind.*some.weight",
        tmp_path / "empty": "has no weights",
        tmp_path / "notes.txt": "not a file of weights",
        tmp_path / "lost.safetensors": "there is no file or folder",
        "": "path of the weights is empty",
    }.items():
        with pytest.raises(UserError, match=words):
            read(str(path))


def test_a_name_that_the_hub_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*args: Any, **keys: Any) -> Any:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    with pytest.raises(UserError, match=r"neither a file or folder nor to be had.*no network"):
        read("someone/some-model")


def test_a_hub_name_is_a_folder_of_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: str(DATA / "bert"))
    assert read("hf-hub:someone/bert").origin == "someone/bert"


@pytest.mark.parametrize("plain", [True, False])
def test_torch_files_of_the_hub_only_where_there_is_nothing_else(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    files = ["config.json", "pytorch_model.bin", *(["model.safetensors"] if plain else [])]
    asked: list[str] = []

    def download(name: str, *, local_files_only: bool = False, allow_patterns: Any = ()) -> str:
        if local_files_only:
            raise OSError("not in the cache")
        asked.extend(allow_patterns)
        return str(DATA / "bert")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *a, **k: None)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *a, **k: files)
    assert read("someone/bert").origin == "someone/bert"
    matched = {f for f in files if any(fnmatch.fnmatch(f, pattern) for pattern in asked)}
    assert matched == set(files) - ({"pytorch_model.bin"} if plain else set())


def test_settings_that_are_spoilt(tmp_path: Path) -> None:
    bert = folder("bert", tmp_path)
    spoil(bert / "config.json", hidden_act="swish")
    with pytest.raises(UserError, match=r"hidden_act is 'swish'; what can be imported"):
        read(str(bert))
    for content in ("{", "[" * 100_000):
        (bert / "config.json").write_text(content)
        with pytest.raises(UserError, match=r"not readable JSON"):
            read(str(bert))
    clip = folder("open_clip", tmp_path)
    spoil(clip / "open_clip_config.json", model_cfg={"text_cfg": {"hf_model_name": "mt5"}})
    with pytest.raises(UserError, match=r"hf_model_name is 'mt5'"):
        read(str(clip))


def test_missing_layers_and_strange_names(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    shutil.copy(DATA / "bert" / "config.json", path)
    arrays = load_file(DATA / "bert" / "model.safetensors")
    less = {k: x for k, x in arrays.items() if "word_embeddings" not in k}
    save_file(less, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"looks like BERT, but lacks its token_embedding"):
        read(str(tmp_path))
    more = {**arrays, "adapter.weight": np.zeros(2, np.float32)}
    save_file(more, tmp_path / "model.safetensors")
    assert read(str(tmp_path)).unknown == ["adapter.weight"]


def test_shards(tmp_path: Path) -> None:
    bert = folder("bert", tmp_path)
    arrays = load_file(bert / "model.safetensors")
    names = sorted(arrays)
    where = {name: f"part-{k % 2}.safetensors" for k, name in enumerate(names)}
    for file in set(where.values()):
        save_file({n: arrays[n] for n in names if where[n] == file}, bert / file)
    (bert / "model.safetensors").unlink()
    index = bert / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    assert set(read(str(bert)).parts) == {"text"}
    index.write_text(json.dumps({"weight_map": {**where, "lost": "part-0.safetensors"}}))
    with pytest.raises(UserError, match=r"its files lack 'lost'"):
        read(str(bert))
    for strange in ([1], {"a": 3}, {"a": ["part-0.safetensors"]}):
        index.write_text(json.dumps({"weight_map": strange}))
        with pytest.raises(UserError, match=r"no weight_map"):
            read(str(bert))
    index.write_text(json.dumps({"weight_map": {"a": "../part-0.safetensors"}}))
    with pytest.raises(UserError, match=r"not in its folder\. Not opened"):
        read(str(bert))


def test_bfloat16_and_half(tmp_path: Path) -> None:
    import ml_dtypes

    from big_retrieval.interop import files

    values = np.arange(4, dtype=np.float32)
    save_file({"a": values.astype(np.float16)}, tmp_path / "half.safetensors")
    assert files.read_arrays(tmp_path / "half.safetensors")["a"].dtype == np.float32
    raw = values.astype(ml_dtypes.bfloat16).tobytes()
    header = json.dumps({"a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "brain.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + raw)
    np.testing.assert_array_equal(read_arrays(tmp_path / "brain.safetensors")["a"], values)


class FakeTorch(types.ModuleType):
    """A `torch` that notes how it is asked to load, and unpickles where it is asked to."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.asked: list[dict[str, Any]] = []

    def load(self, path: Path, **keys: Any) -> Any:
        self.asked.append(keys)
        if keys.get("weights_only") is not True:
            pickle.loads(Path(path).read_bytes())
        raise pickle.UnpicklingError("Weights only load failed")


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin", "model.pth", "model.ckpt"])
def test_with_torch_installed_nothing_is_unpickled(name, tmp_path, monkeypatch) -> None:
    fake, trace = FakeTorch(), tmp_path / "trace"
    monkeypatch.setitem(sys.modules, "torch", fake)
    (tmp_path / name).write_bytes(pickle.dumps({"weight": Code(trace)}))
    with pytest.raises(UserError):
        read(str(tmp_path / name))
    assert not trace.exists()
    assert all(keys["weights_only"] is True for keys in fake.asked)


def test_a_folder_for_open_clip_and_timm_is_read_with_open_clip(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "open_clip_model.safetensors"):
        (tmp_path / name).touch()
    assert weights_file(tmp_path).name == "model.safetensors"
    (tmp_path / "open_clip_config.json").touch()
    assert weights_file(tmp_path).name == "open_clip_model.safetensors"
