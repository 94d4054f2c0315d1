"""Settings files next to the weights: heads, activation, pixels, pooling, tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError
from big_retrieval.interop.files import read_json
from big_retrieval.interop.hugging_face_keys import CONFIGS
from big_retrieval.interop.pixels import (
    Pixels,
    hugging_face_pixels,
    image_side,
    open_clip_pixels,
    timm_pixels,
)
from big_retrieval.interop.settings_file import SettingsFile
from big_retrieval.interop.settings_keys import OPEN_CLIP, TIMM
from big_retrieval.interop.tokenizer_settings import tokenizer_folder, tokenizer_length

ACTIVATIONS = {  # name in settings files -> activation
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
}
# Defaults of transformers for keys that files leave out: heads, activation, epsilon.
_BERT = (12, "gelu", 1e-12)
_CLIP_TEXT = (8, "quick_gelu", 1e-5)
_CLIP_VISION = (12, "quick_gelu", 1e-5)
_CLIP_END = 49_407  # id of the last token, if the file does not give it
_LARGEST_END = 2  # end id of old files: transformers then pools at the largest id


@dataclass(frozen=True)
class Settings:
    """Model settings that the weight arrays do not contain. None means unspecified."""

    model_type: str = ""  # of a Hugging Face config.json
    # "image", "text" -> heads, activation, epsilon and so on.
    towers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pixels: Pixels | None = None
    pool: Any = None  # of texts: "first", "mean" or "last"
    normalise: bool | None = None  # True if embeddings have norm 1
    length: int | None = None  # maximum number of tokens per text
    # Id of the position that texts are pooled at, or "largest"; None if the id does not matter.
    end: int | str | None = None
    prefix: str = ""  # before every text
    prompts: Mapping[str, str] = field(default_factory=dict)  # use -> text, as E5's "query: "
    tokenizer: Path | None = None  # folder or file

    def for_side(self, side: str) -> Mapping[str, Any]:
        """Returns the specified heads, activation, epsilon and so on of a side's tower."""
        return self.towers.get(side, {})


def read_settings(folder: Path) -> Settings:
    """Reads the settings of a model folder of open_clip, timm or Hugging Face.

    Raises:
      UserError: a file that cannot be read, or a model that cannot be imported.
    """
    if (folder / "open_clip_config.json").is_file():
        return _open_clip(folder)
    return _hugging_face(folder) if (folder / "config.json").is_file() else Settings()


def _hugging_face(folder: Path) -> Settings:
    path = folder / "config.json"
    raw = read_json(path)
    if "architecture" in raw and "pretrained_cfg" in raw:
        return _timm(path)
    model_type = str(raw.get("model_type", ""))
    if model_type not in CONFIGS:
        raise UserError(
            f"{path}: model_type is {model_type!r}; only these can be imported: "
            f"{', '.join(CONFIGS)}. If the file belongs to another model than the weights, move "
            "the weights to their own folder."
        )
    config = SettingsFile(path, raw, CONFIGS[model_type])
    config.get("model_type")
    end = None
    if model_type == "clip":
        text, vision = (_clip_tower(config, raw, side) for side in ("text", "vision"))
        towers = {"text": _attention(text, _CLIP_TEXT), "image": _image(vision, _CLIP_VISION)}
        end = text.number("eos_token_id", _CLIP_END)
    elif model_type == "clip_vision_model":
        towers = {"image": _image(config, _CLIP_VISION)}
    elif model_type == "clip_text_model":
        towers = {"text": _attention(config, _CLIP_TEXT)}
        end = config.number("eos_token_id", _CLIP_END)
    elif model_type == "vit":
        towers = {"image": _image(config, _BERT)}
    elif model_type == "distilbert":
        towers = {"text": _distilbert(config)}
    else:
        towers = {} if model_type == "resnet" else {"text": _attention(config, _BERT)}
    exported = _keys_of_export(config)
    config.finish()
    return Settings(
        model_type=model_type,
        towers=towers,
        pixels=hugging_face_pixels(folder, model_type),
        pool=exported.get("pool"),
        normalise=exported.get("normalise"),
        length=tokenizer_length(folder),
        end="largest" if end == _LARGEST_END else end,
        tokenizer=tokenizer_folder(folder),
    )


def _clip_tower(config: SettingsFile, raw: Mapping[str, Any], side: str) -> SettingsFile:
    """Returns the settings of a CLIP tower; a copy under an older key must be equal."""
    name = f"{side}_config"
    tower = config.inside(name)
    for key in ("model_type", "big_retrieval"):
        tower.get(key)
    for key, value in (config.get(f"{name}_dict") or {}).items():
        if (raw.get(name) or {}).get(key) != value:
            raise config.refused(f"{name}_dict", f"{key} differs from {name}; make them agree")
    return tower


def _keys_of_export(config: SettingsFile) -> Mapping[str, Any]:
    """Returns `pool` and `normalise`, which an export adds to config.json."""
    value = config.get("big_retrieval", {})
    choices = {"pool": (None, "first", "mean"), "normalise": (None, True, False)}
    if not isinstance(value, Mapping) or any(x not in choices.get(k, ()) for k, x in value.items()):
        raise config.refused("big_retrieval", "no export wrote this value; restore it")
    return value


def _attention(config: SettingsFile, defaults: tuple[int, str, float]) -> dict[str, Any]:
    heads, activation, epsilon = defaults
    return {
        "heads": config.number("num_attention_heads", heads),
        "depth": config.number("num_hidden_layers"),
        "activation": config.choice("hidden_act", ACTIVATIONS, activation),
        "epsilon": config.number("layer_norm_eps", epsilon),
    }


def _distilbert(config: SettingsFile) -> dict[str, Any]:
    return {
        "heads": config.number("n_heads", 12),
        "depth": config.number("n_layers"),
        "activation": config.choice("activation", ACTIVATIONS, "gelu"),
    }


def _image(config: SettingsFile, defaults: tuple[int, str, float]) -> dict[str, Any]:
    size = image_side(config, "image_size") or 224
    return {**_attention(config, defaults), "image_size": size}


def _timm(path: Path) -> Settings:
    config = SettingsFile.open(path, TIMM)
    name = str(config.get("architecture"))
    pixels = timm_pixels(config.inside("pretrained_cfg"))
    pool = "avg" if name.startswith("resnet") else "token"
    if config.get("global_pool") not in (None, pool):
        raise config.refused("global_pool", f"only {pool!r} can be imported for this architecture")
    config.finish()
    tower = {
        "epsilon": 1e-5 if "_clip" in name else 1e-6,
        "activation": "quick_gelu" if "quickgelu" in name else "gelu",
    }
    return Settings(towers={"image": tower}, pixels=pixels)


def _open_clip(folder: Path) -> Settings:
    file = SettingsFile.open(folder / "open_clip_config.json", OPEN_CLIP)
    model = file.inside("model_cfg")
    vision, text = model.inside("vision_cfg"), model.inside("text_cfg")
    activation = "quick_gelu" if model.get("quick_gelu") else "gelu"
    size = image_side(vision, "image_size") or 224
    image = {
        "activation": activation,
        "epsilon": _epsilon(vision),
        "heads": vision.number("width", 768) // vision.number("head_width", 64),
        "depth": vision.number("layers", 12),
        "pool": vision.choice("pool_type", {"tok": "first", "avg": "mean"}, "tok"),
        "norm_first": not vision.get("no_ln_pre", False),
        "image_size": size,
    }
    bert = str(text.get("hf_model_name") or "")
    end = None
    if bert:
        text_keys = {"heads": text.number("heads")}
        _check_bert(text, bert)
    else:
        text_keys = {
            "activation": activation,
            "epsilon": _epsilon(text),
            "heads": text.number("heads", 8),
            "depth": text.number("layers", 12),
        }
        pools = {"argmax": "largest", "eos": text.number("eos_id", 2)}
        end = text.choice("pool_type", pools, "argmax")
        text.choice("proj_type", {"linear": True, "none": False}, "linear")
    pixels = open_clip_pixels(file.inside("preprocess_cfg"), size)
    length = text.number("context_length", 77)
    file.finish()
    return Settings(
        model_type="roberta" if "roberta" in bert.lower() else "",
        towers={"image": image, "text": text_keys},
        pixels=pixels,
        length=length,
        end=end,
        tokenizer=tokenizer_folder(folder),
    )


def _epsilon(tower: SettingsFile) -> float:
    return tower.inside("norm_kwargs").number("eps", 1e-5)


def _check_bert(text: SettingsFile, name: str) -> None:
    """Checks an encoder of transformers inside of open_clip, which reads no other keys for it."""
    if "bert" not in name.lower():
        raise text.refused("hf_model_name", "only BERT and RoBERTa can be imported here")
    for key in ("hf_pooler_type", "pooler_type"):
        text.choice(key, {"mean_pooler": "mean"}, "mean_pooler")
    for key in ("layers", "pool_type", "eos_id", "proj_type"):
        text.get(key)
