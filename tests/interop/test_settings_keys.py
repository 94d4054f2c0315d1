"""Settings of other libraries: every key is used, known to be harmless, or an error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval.data.text.tokenizers import load_tokenizer
from big_retrieval.errors import UserError
from big_retrieval.interop.compatibility import check_tokenizer
from big_retrieval.interop.model import import_model
from big_retrieval.interop.read import read
from tests.interop.folders import change, sentence_transformer, splade, with_words

CLIP = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 24}}
CLIP |= {"do_resize": True, "crop_size": 24}
LIBRARY = "config_sentence_transformers.json"


def model_folder(kind: str, folder: Path) -> Path:
    """A folder of one of the libraries."""
    if kind == "sentence_transformers":
        copy = sentence_transformer(folder, **{"2_Normalize": "Normalize"})
        change(copy / "2_Normalize" / "config.json", module_input_name="sentence_embedding")
        return copy
    return splade(folder) if kind == "splade" else with_words(kind, folder)


UNKNOWN = [  # kind of folder, file, objects in it
    ("open_clip", "open_clip_config.json", ("", "model_cfg", "model_cfg.vision_cfg",
     "model_cfg.text_cfg", "preprocess_cfg", "model_cfg.vision_cfg.norm_kwargs")),
    ("timm_vit", "config.json", ("", "pretrained_cfg")),
    ("bert", "config.json", ("",)),
    ("roberta", "config.json", ("",)),
    ("distilbert", "config.json", ("",)),
    ("mpnet", "config.json", ("",)),
    ("hf_vit", "config.json", ("",)),
    ("hf_vit", "preprocessor_config.json", ("",)),
    ("hf_vit", "processor_config.json", ("image_processor",)),
    ("hf_clip", "config.json", ("", "text_config", "vision_config", "text_config_dict")),
    ("bert", "tokenizer_config.json", ("",)),
    ("sentence_transformers", "modules.json", ("",)),
    ("sentence_transformers", "config.json", ("",)),
    ("sentence_transformers", "sentence_bert_config.json", ("", "modality_config.image")),
    ("sentence_transformers", LIBRARY, ("",)),
    ("sentence_transformers", "1_Pooling/config.json", ("",)),
    ("sentence_transformers", "2_Normalize/config.json", ("",)),
    ("splade", "1_SpladePooling/config.json", ("",)),
    ("splade", LIBRARY, ("",)),
    ("splade", "sentence_bert_config.json", ("",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "file", "inside"),
    [(kind, file, inside) for kind, file, objects in UNKNOWN for inside in objects],
)
def test_importers_reject_unknown_keys(kind: str, file: str, inside: str, tmp_path: Path) -> None:
    folder = model_folder(kind, tmp_path)
    if "processor_config" in file:
        change(folder / file, inside=inside, size={"height": 24, "width": 24})
    read(str(folder))
    change(folder / file, inside=inside, sharpen=0.25)
    with pytest.raises(UserError) as error:
        read(str(folder))
    message = str(error.value)
    assert str(folder / file) in message or folder.name in message
    assert "sharpen" in message or "modality_config.image" in message
    assert "0.25" in message


OPEN_CLIP = "open_clip", "open_clip_config.json"
REFUSED = {  # (kind of folder, file, object in it) -> keys
    (*OPEN_CLIP, "model_cfg.vision_cfg"): {
        "final_ln_after_pool": True,
        "attentional_pool": True,
        "pool_type": "none",
        "no_ln_pre": True,
        "image_size": 30,
        "layers": 1,
        "ls_init_value": 0.1,
        "qk_norm": True,
        "act_kwargs": {"approximate": "tanh"},
        "timm_model_name": "vit_base_patch16_224",
    },
    (*OPEN_CLIP, "model_cfg.text_cfg"): {
        "pool_type": "last",
        "no_causal_mask": True,
        "embed_cls": True,
        "proj_bias": True,
        "final_ln_after_pool": True,
        "hf_model_name": "google/mt5-base",
    },
    (*OPEN_CLIP, "model_cfg"): {"init_logit_bias": -10, "multimodal_cfg": {"width": 32}},
    (*OPEN_CLIP, "preprocess_cfg"): {
        "resize_mode": "longest",
        "interpolation": "nearest",
        "size": [24, 32],
        "mean": [0.5],
    },
    ("timm_vit", "config.json", ""): {"global_pool": "avg", "model_args": {"class_token": False}},
    ("timm_vit", "config.json", "pretrained_cfg"): {
        "crop_mode": "border",
        "interpolation": "lanczos",
        "input_size": [3, 24, 32],
        "crop_pct": 1.2,
    },
    ("bert", "config.json", ""): {
        "is_decoder": True,
        "position_embedding_type": "relative_key",
        "pruned_heads": {"0": [1]},
        "num_hidden_layers": 1,
        "hidden_act": "swish",
        "model_type": "nomic_bert",
        "auto_map": {"AutoModel": "modeling.Bert"},
    },
    ("hf_vit", "config.json", ""): {"qkv_bias": False, "image_size": 30, "num_channels": 1},
    ("hf_clip", "config.json", "text_config"): {"hidden_act": "swish"},
    ("hf_clip", "config.json", "vision_config"): {"image_size": 32},
    ("sentence_transformers", LIBRARY, ""): {"truncate_dim": 8, "similarity_fn_name": "euclidean"},
    ("sentence_transformers", "tokenizer_config.json", ""): {
        "padding_side": "left",
        "strip_accents": False,
    },
    ("sentence_transformers", "1_Pooling/config.json", ""): {"pooling_mode": "max"},
    ("sentence_transformers", "sentence_bert_config.json", ""): {"max_seq_length": -1},
    ("splade", "1_SpladePooling/config.json", ""): {
        "pooling_strategy": "sum",
        "activation_function": "gelu",
    },
}
OF_ARRAYS = {"image_size", "layers", "num_hidden_layers", "no_ln_pre"}  # contradict the arrays


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [(where, key, value) for where, keys in REFUSED.items() for key, value in keys.items()],
)
def test_importers_reject_other_values(
    where: tuple[str, str, str], key: str, value: Any, tmp_path: Path
) -> None:
    kind, file, inside = where
    folder = model_folder(kind, tmp_path)
    change(folder / file, inside=inside, **{key: value})
    with pytest.raises(UserError) as error:
        read(str(folder))
    message = str(error.value)
    assert (str(folder) if key in OF_ARRAYS else key if key != "pooling_mode" else "max") in message


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
    "list": (CLIP | {"size": {"shortest_edge": [24]}}, "size is"),
    "padded": (CLIP | {"size": {"shortest_edge": 16}}, "crop_size is 24"),
    "another": ({"image_processor_type": "FlavaImageProcessor"}, "image_processor_type is"),
}  # fmt: skip


@pytest.mark.parametrize("name", PREPROCESSORS)
def test_importers_read_preprocessors_of_transformers(name: str, tmp_path: Path) -> None:
    settings, expected = PREPROCESSORS[name]
    folder = with_words("hf_vit", tmp_path)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            read(str(folder))
        return
    pixels = read(str(folder)).settings.pixels
    assert pixels is not None
    assert pixels.size == 24
    assert (pixels.resize, pixels.squash, pixels.interpolation) == expected


def test_import_puts_default_prompt_before_texts(tmp_path: Path) -> None:
    folder = sentence_transformer(tmp_path)
    expected = import_model(str(folder)).encode_texts(["red a b"])
    change(folder / LIBRARY, prompts={"ask": "red "}, default_prompt_name="ask")
    np.testing.assert_array_equal(import_model(str(folder)).encode_texts(["a b"]), expected)


def test_include_prompt_false_is_rejected_with_prompts(tmp_path: Path) -> None:
    folder = sentence_transformer(tmp_path)
    change(folder / "1_Pooling/config.json", include_prompt=False)
    read(str(folder))
    change(folder / LIBRARY, prompts={"query": "query: "})
    with pytest.raises(UserError, match="include_prompt is False"):
        read(str(folder))


def test_do_lower_case_is_rejected_for_cased_tokenizers(tmp_path: Path) -> None:
    folder = sentence_transformer(tmp_path)
    change(folder / "sentence_bert_config.json", do_lower_case=True)
    read(str(folder))
    change(folder / "tokenizer_config.json", do_lower_case=False)
    with (folder / "vocab.txt").open("a") as file:
        file.write("A\nB\n")
    with pytest.raises(UserError, match="do_lower_case is True"):
        read(str(folder))


def test_texts_must_end_with_the_pooled_id(tmp_path: Path) -> None:
    folder = with_words("hf_clip", tmp_path)
    change(folder / "config.json", inside="text_config", eos_token_id=39)
    with pytest.raises(UserError, match="pools texts at the id 39"):
        import_model(str(folder))


def test_importers_reject_two_image_processors(tmp_path: Path) -> None:
    folder = with_words("hf_vit", tmp_path)
    path = folder / "processor_config.json"
    change(path, inside="image_processor", **CLIP)
    change(path, inside="feature_extractor", **CLIP)
    with pytest.raises(UserError, match=r"feature_extractor is .* cannot be imported"):
        read(str(folder))


def test_folder_with_merges_and_no_tokenizer_json_is_rejected(tmp_path: Path) -> None:
    folder = with_words("hf_clip", tmp_path)
    (folder / "vocab.txt").rename(folder / "merges.txt")
    source, tokenizer = read(str(folder)), load_tokenizer("auto", str(with_words("bert", tmp_path)))
    with pytest.raises(UserError, match=r"no tokenizer.json or vocab.txt. Save the tokenizer"):
        check_tokenizer(source, tokenizer)
