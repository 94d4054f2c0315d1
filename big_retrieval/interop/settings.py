"""Settings files next to the weights: heads, activation, pixels, pooling, tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError
from big_retrieval.interop.files import read_json
from big_retrieval.interop.hugging_face_keys import CONFIGS
from big_retrieval.interop.pixels import Pixels, hugging_face_pixels, open_clip_pixels, timm_pixels
from big_retrieval.interop.pixels import side as image_side
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
# Defaults of transformers for keys that files leave out.
_HF_BERT = {"num_attention_heads": 12, "hidden_act": "gelu", "layer_norm_eps": 1e-12}
_HF_END = 49_407  # of CLIP, if the file does not give it
_HF_LARGEST = 2  # end id for which transformers pools at the largest id, for old files
_HF_TEXT = {"num_attention_heads": 8, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
_HF_VISION = {"num_attention_heads": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}


@dataclass(frozen=True)
class Settings:
    """Model settings that the weight arrays do not contain. None means unspecified.

    Attributes:
      model_type: value in a Hugging Face config.json.
      towers: "image", "text" -> heads, activation, epsilon.
      pixels: preparation of images.
      pool: pooling of texts: "first", "mean" or "last".
      normalise: True if embeddings are divided by their norm.
      length: maximum number of tokens of a text.
      end: id of the position that texts are pooled at; "largest" for the largest id of a text; None
        if the id does not matter.
      prefix: text that the library puts before every text.
      notes: messages about intended differences from the library.
      prompts: use -> text before queries or documents (E5's "query: ").
      tokenizer: folder or file of the tokenizer.
    """

    model_type: str = ""
    towers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pixels: Pixels | None = None
    pool: str | None = None
    normalise: bool | None = None
    length: int | None = None
    end: int | str | None = None
    prefix: str = ""
    notes: tuple[str, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    tokenizer: Path | None = None

    def of(self, side: str) -> Mapping[str, Any]:
        """Returns the known heads, activation and epsilon of a side."""
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
    kind = str(raw.get("model_type", ""))
    if kind not in CONFIGS:
        known = ", ".join(CONFIGS)
        raise UserError(
            f"{path}: model_type is {kind!r}; what can be imported: {known}. If the file "
            "belongs to another model than the weights, move the weights to their own folder."
        )
    config = SettingsFile(path, raw, CONFIGS[kind])
    config.get("model_type")
    end = None
    if kind == "clip":
        text, vision = _clip_part(config, "text"), _clip_part(config, "vision")
        towers = {"text": _attention(text, _HF_TEXT), "image": _image(vision, _HF_VISION)}
        end = text.number("eos_token_id", _HF_END)
    elif kind in ("vit", "clip_vision_model"):
        towers = {"image": _image(config, _HF_VISION if kind.startswith("clip") else _HF_BERT)}
    elif kind == "resnet":
        towers = {}
    else:
        towers = {"text": _attention(config, _HF_TEXT if kind.startswith("clip") else _HF_BERT)}
        end = config.number("eos_token_id", _HF_END) if kind == "clip_text_model" else None
    exported = _of_an_export(config)
    config.finish()
    return Settings(
        model_type=kind,
        towers=towers,
        pixels=hugging_face_pixels(folder, kind),
        pool=exported.get("pool"),
        normalise=exported.get("normalise"),
        length=tokenizer_length(folder),
        end="largest" if end == _HF_LARGEST else end,
        tokenizer=tokenizer_folder(folder),
    )


def _clip_part(config: SettingsFile, side: str) -> SettingsFile:
    """Returns the settings of a tower of CLIP; an older form of them must be the same."""
    old = config.get(f"{side}_config_dict")
    part = config.inside(f"{side}_config")
    for key in ("model_type", "big_retrieval"):
        part.get(key)
    for key, value in (old or {}).items():
        if part.value(key) != value:
            raise config.refused(
                f"{side}_config_dict", f"its {key}, {value!r}, is not that of {side}_config"
            )
    return part


def _of_an_export(config: SettingsFile) -> Mapping[str, Any]:
    """Returns `pool` and `normalise`, which an export adds to config.json."""
    value = config.get("big_retrieval", {})
    known = {"pool": (None, "first", "mean"), "normalise": (None, True, False)}
    if (
        not isinstance(value, Mapping)
        or set(value) - set(known)
        or any(value.get(k) not in v for k, v in known.items())
    ):
        raise config.refused("big_retrieval", "no export wrote that; restore it")
    return value


def _attention(config: SettingsFile, usual: Mapping[str, Any]) -> dict[str, Any]:
    """Returns heads, activation, epsilon and depth of a tower."""
    old = config.lists("n_heads")  # DistilBERT's names
    heads, layers = ("n_heads", "n_layers") if old else ("num_attention_heads", "num_hidden_layers")
    return {
        "heads": config.number(heads, usual["num_attention_heads"]),
        "depth": config.number(layers),
        "activation": config.choice(
            "activation" if old else "hidden_act", ACTIVATIONS, usual["hidden_act"]
        ),
        "epsilon": None if old else config.number("layer_norm_eps", usual["layer_norm_eps"]),
    }


def _image(config: SettingsFile, usual: Mapping[str, Any]) -> dict[str, Any]:
    size = image_side(config, "image_size") or 224
    return {**_attention(config, usual), "image_size": size}


def _timm(path: Path) -> Settings:
    config = SettingsFile.open(path, TIMM)
    name = str(config.get("architecture"))
    pixels = timm_pixels(config.inside("pretrained_cfg"))
    resnet = name.startswith("resnet")
    pool = config.get("global_pool")
    if pool not in (None, "avg" if resnet else "token"):
        raise config.refused(
            "global_pool", "a ViT can be imported with 'token', a ResNet with 'avg'"
        )
    config.finish()
    tower = {
        "epsilon": 1e-5 if "_clip" in name else 1e-6,
        "activation": "quick_gelu" if "quickgelu" in name else "gelu",
    }
    return Settings(towers={"image": tower}, pixels=pixels)


def _open_clip(folder: Path) -> Settings:
    whole = SettingsFile.open(folder / "open_clip_config.json", OPEN_CLIP)
    model = whole.inside("model_cfg")
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
    inside = str(text.get("hf_model_name") or "")
    end = None
    if inside:
        words = {"heads": text.number("heads")}
        _bert_inside(text, inside)
    else:
        words = {
            "activation": activation,
            "epsilon": _epsilon(text),
            "heads": text.number("heads", 8),
            "depth": text.number("layers", 12),
        }
        pools = {"argmax": "largest", "eos": text.number("eos_id", 2)}
        end = text.choice("pool_type", pools, "argmax")
        text.choice("proj_type", {"linear": True, "none": False}, "linear")
    pixels = open_clip_pixels(whole.inside("preprocess_cfg"), size)
    length = text.number("context_length", 77)
    whole.finish()
    return Settings(
        model_type="roberta" if "roberta" in inside.lower() else "",
        towers={"image": image, "text": words},
        pixels=pixels,
        length=length,
        end=end,
        tokenizer=tokenizer_folder(folder),
    )


def _epsilon(tower: SettingsFile) -> float:
    return tower.inside("norm_kwargs").number("eps", 1e-5)


def _bert_inside(text: SettingsFile, name: str) -> None:
    """Checks a tower of transformers inside of open_clip, whose other keys are not read there."""
    if "bert" not in name.lower():
        raise text.refused(
            "hf_model_name", "only BERT and RoBERTa can be imported inside of open_clip"
        )
    for key in ("hf_pooler_type", "pooler_type"):
        text.choice(key, {"mean_pooler": "mean"}, "mean_pooler")
    for key in ("layers", "pool_type", "eos_id", "proj_type"):
        text.get(key)
