"""Settings of other libraries: every key is used, known to be harmless, or an error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval.errors import UserError
from big_retrieval.interop.model import import_model
from big_retrieval.interop.read import read
from tests.interop.test_masked import NEW, splade_folder
from tests.interop.test_model import sentence_transformer, with_words

CLIP = {
    "image_processor_type": "CLIPImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 24},
    "crop_size": 24,
}


def change(path: Path, where: str, value: Any) -> None:
    """Sets one key of a JSON file, such as "model_cfg.text_cfg.heads"."""
    whole = json.loads(path.read_text()) if path.is_file() else {}
    *inside, key = where.split(".")
    part = whole[0] if isinstance(whole, list) else whole
    for name in inside:
        part = part.setdefault(name, {})
    part[key] = value
    path.write_text(json.dumps(whole))


def model_folder(kind: str, folder: Path) -> Path:
    """A folder of one of the libraries."""
    if kind == "sentence_transformers":
        found = sentence_transformer(folder, "new", ("2_Normalize", "Normalize"))
        change(found / "2_Normalize" / "config.json", "module_input_name", "sentence_embedding")
        return found
    return splade_folder(folder, NEW) if kind == "splade" else with_words(kind, folder)


UNKNOWN = [
    ("open_clip", "open_clip_config.json", ("", "model_cfg.", "model_cfg.vision_cfg.",
     "model_cfg.text_cfg.", "preprocess_cfg.", "model_cfg.vision_cfg.norm_kwargs.")),
    ("timm_vit", "config.json", ("", "pretrained_cfg.")),
    ("bert", "config.json", ("",)),
    ("roberta", "config.json", ("",)),
    ("distilbert", "config.json", ("",)),
    ("mpnet", "config.json", ("",)),
    ("hf_vit", "config.json", ("",)),
    ("hf_vit", "preprocessor_config.json", ("",)),
    ("hf_vit", "processor_config.json", ("image_processor.",)),
    ("hf_clip", "config.json", ("", "text_config.", "vision_config.", "text_config_dict.")),
    ("bert", "tokenizer_config.json", ("",)),
    ("sentence_transformers", "modules.json", ("",)),
    ("sentence_transformers", "config.json", ("",)),
    ("sentence_transformers", "sentence_bert_config.json", ("", "modality_config.image.")),
    ("sentence_transformers", "config_sentence_transformers.json", ("",)),
    ("sentence_transformers", "1_Pooling/config.json", ("",)),
    ("sentence_transformers", "2_Normalize/config.json", ("",)),
    ("splade", "1_SpladePooling/config.json", ("",)),
    ("splade", "config_sentence_transformers.json", ("",)),
    ("splade", "sentence_bert_config.json", ("",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "file", "where"), [(kind, file, where) for kind, file, all in UNKNOWN for where in all]
)
def test_importers_reject_unknown_keys(kind: str, file: str, where: str, tmp_path: Path) -> None:
    folder = model_folder(kind, tmp_path)
    if file in ("preprocessor_config.json", "processor_config.json"):
        size = {"height": 24, "width": 24}
        change(folder / file, where + "size", size)
    read(str(folder))
    change(folder / file, where + "sharpen", 0.25)
    with pytest.raises(UserError, match=r"config|modules") as problem:
        read(str(folder))
    words = str(problem.value)
    assert str(folder / file) in words or folder.name in words
    assert "sharpen" in words or "modality_config.image" in words
    assert "0.25" in words


REFUSED = {
    "open_clip": {
        "model_cfg.vision_cfg.final_ln_after_pool": True,
        "model_cfg.vision_cfg.attentional_pool": True,
        "model_cfg.vision_cfg.pool_type": "none",
        "model_cfg.vision_cfg.no_ln_pre": True,
        "model_cfg.vision_cfg.image_size": 30,
        "model_cfg.vision_cfg.layers": 1,
        "model_cfg.vision_cfg.ls_init_value": 0.1,
        "model_cfg.vision_cfg.qk_norm": True,
        "model_cfg.vision_cfg.act_kwargs": {"approximate": "tanh"},
        "model_cfg.vision_cfg.timm_model_name": "vit_base_patch16_224",
        "model_cfg.text_cfg.pool_type": "last",
        "model_cfg.text_cfg.no_causal_mask": True,
        "model_cfg.text_cfg.embed_cls": True,
        "model_cfg.text_cfg.proj_bias": True,
        "model_cfg.text_cfg.final_ln_after_pool": True,
        "model_cfg.text_cfg.hf_model_name": "google/mt5-base",
        "model_cfg.init_logit_bias": -10,
        "model_cfg.multimodal_cfg": {"width": 32},
        "preprocess_cfg.resize_mode": "longest",
        "preprocess_cfg.interpolation": "nearest",
        "preprocess_cfg.size": [24, 32],
        "preprocess_cfg.mean": [0.5],
    },
    "timm_vit": {
        "global_pool": "avg",
        "model_args": {"class_token": False},
        "pretrained_cfg.crop_mode": "border",
        "pretrained_cfg.interpolation": "lanczos",
        "pretrained_cfg.input_size": [3, 24, 32],
        "pretrained_cfg.crop_pct": 1.2,
    },
    "bert": {
        "is_decoder": True,
        "position_embedding_type": "relative_key",
        "pruned_heads": {"0": [1]},
        "num_hidden_layers": 1,
        "model_type": "nomic_bert",
        "auto_map": {"AutoModel": "modeling.Bert"},
    },
    "hf_vit": {"qkv_bias": False, "image_size": 30, "num_channels": 1},
    "hf_clip": {"text_config.hidden_act": "swish", "vision_config.image_size": 32},
}


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [(k, key, value) for k, of in REFUSED.items() for key, value in of.items()],
)
def test_importers_reject_other_values(kind: str, key: str, value: Any, tmp_path: Path) -> None:
    folder = with_words(kind, tmp_path)
    file = "open_clip_config.json" if kind == "open_clip" else "config.json"
    change(folder / file, key, value)
    with pytest.raises(UserError):
        read(str(folder))


PREPROCESSORS: dict[str, tuple[dict[str, Any], Any]] = {
    # settings -> (eval_resize, eval_squash, interpolation), or a word of the error
    "ViT": ({"image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 24}},
            (0, True, "bilinear")),
    "old ViT": ({"feature_extractor_type": "ViTFeatureExtractor", "size": 24, "resample": 3},
                (0, True, "bicubic")),
    "CLIP": (CLIP | {"size": 32}, (32, False, "bicubic")),
    "CLIP, bilinear": (CLIP | {"resample": 2}, (0, False, "bilinear")),
    "DeiT": ({"image_processor_type": "DeiTImageProcessor", "size": {"height": 28, "width": 28},
              "crop_size": 24}, (28, True, "bicubic")),
    "ConvNext": ({"image_processor_type": "ConvNextImageProcessor", "crop_pct": 0.8,
                  "size": {"shortest_edge": 24}}, (30, False, "bicubic")),
    "no crop": (CLIP | {"do_center_crop": False}, "do_center_crop is False"),
    "no resize": (CLIP | {"do_resize": False}, "do_resize is False"),
    "no rescale": (CLIP | {"do_rescale": False}, "do_rescale is False"),
    "other scale": (CLIP | {"rescale_factor": 1.0}, "rescale_factor is 1.0"),
    "lanczos": (CLIP | {"resample": 1}, "resample is 1"),
    "longest": (CLIP | {"size": {"longest_edge": 24}}, "size is"),
    "oblong": (CLIP | {"crop_size": {"height": 24, "width": 16}}, "crop_size is"),
    "padded": (CLIP | {"size": {"shortest_edge": 16}}, "crop_size is 24"),
    "another": ({"image_processor_type": "FlavaImageProcessor"}, "image_processor_type is"),
}  # fmt: skip


@pytest.mark.parametrize("name", PREPROCESSORS)
def test_preprocessors_of_transformers(name: str, tmp_path: Path) -> None:
    settings, expected = PREPROCESSORS[name]
    folder = with_words("hf_vit", tmp_path)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            read(str(folder))
        return
    keys: Any = read(str(folder)).settings.pixels
    found = keys.keys()
    assert keys.size == 24
    assert tuple(found[key] for key in ("eval_resize", "eval_squash", "interpolation")) == expected


def library(folder: Path, file: str, **keys: Any) -> Path:
    """A folder of sentence-transformers with other settings."""
    found = model_folder("sentence_transformers", folder)
    for key, value in keys.items():
        change(found / file, key, value)
    return found


LIBRARY = "config_sentence_transformers.json"


def test_import_puts_default_prompt_before_texts(tmp_path: Path) -> None:
    keys = {"prompts": {"ask": "red "}, "default_prompt_name": "ask"}
    model = import_model(str(library(tmp_path, LIBRARY, **keys)))
    plain = import_model(str(library(tmp_path / "plain", LIBRARY)))
    np.testing.assert_array_equal(model.encode_texts(["a b"]), plain.encode_texts(["red a b"]))


def test_import_cuts_embeddings_to_truncate_dim(tmp_path: Path) -> None:
    model = import_model(str(library(tmp_path, LIBRARY, truncate_dim=8)))
    whole = import_model(str(library(tmp_path / "whole", LIBRARY))).encode_texts(["a b"])
    cut = whole[..., :8] / np.linalg.norm(whole[..., :8])
    np.testing.assert_allclose(model.encode_texts(["a b"]), cut, atol=1e-6)


@pytest.mark.parametrize(
    ("file", "keys", "words"),
    [
        (LIBRARY, {"truncate_dim": 64}, "truncate_dim is 64"),
        (LIBRARY, {"similarity_fn_name": "euclidean"}, "similarity_fn_name is 'euclidean'"),
        ("tokenizer_config.json", {"padding_side": "left"}, "padding_side is 'left'"),
        ("tokenizer_config.json", {"strip_accents": False}, "strip_accents is False"),
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "pools by max"),
        ("sentence_bert_config.json", {"max_seq_length": -1}, "max_seq_length is -1"),
    ],
)
def test_sentence_transformers_values_are_rejected(
    file: str, keys: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        read(str(library(tmp_path, file, **keys)))


def test_include_prompt_false_is_rejected_with_prompts(tmp_path: Path) -> None:
    folder = library(tmp_path, "1_Pooling/config.json", include_prompt=False)
    read(str(folder))
    change(folder / LIBRARY, "prompts", {"query": "query: "})
    with pytest.raises(UserError, match="include_prompt is False"):
        read(str(folder))


def test_do_lower_case_is_rejected_for_cased_tokenizers(tmp_path: Path) -> None:
    folder = library(tmp_path, "sentence_bert_config.json", do_lower_case=True)
    read(str(folder))
    change(folder / "tokenizer_config.json", "do_lower_case", False)
    with (folder / "vocab.txt").open("a") as file:
        file.write("A\nB\n")
    with pytest.raises(UserError, match="do_lower_case is True"):
        read(str(folder))


def test_texts_must_end_with_the_pooled_id(tmp_path: Path) -> None:
    folder = with_words("hf_clip", tmp_path)
    change(folder / "config.json", "text_config.eos_token_id", 39)
    with pytest.raises(UserError, match="pools texts at the id 39"):
        import_model(str(folder))


def test_modules_in_another_order_are_rejected(tmp_path: Path) -> None:
    folder = library(tmp_path, LIBRARY)
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([modules[k] for k in (0, 2, 1)]))
    with pytest.raises(UserError, match="Transformer, Normalize, Pooling in an order"):
        read(str(folder))
