"""What the files beside the weights say: heads, activation, pixels, pooling, tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from big_retrieval.data.images.transforms import CLIP_MEAN, CLIP_STD
from big_retrieval.errors import UserError
from big_retrieval.interop.files import read_json

ACTIVATIONS = {  # as the settings call them -> as we do
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
}
# What Hugging Face's CLIP takes for keys that its files leave out.
_HF_TEXT = {"num_attention_heads": 8, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
_HF_VISION = {"num_attention_heads": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "merges.txt")


@dataclass(frozen=True)
class Pixels:
    """How images are prepared: side in pixels, mean and deviation of values in [0, 1].

    Attributes:
      size: of the central square; None: not said.
      mean: of each channel.
      std: of each channel.
      resize: what the short side is resized to before, where that is more; 0: to `size`.
    """

    size: int | None = None
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD
    resize: int = 0


@dataclass(frozen=True)
class Settings:
    """What is known beside the arrays; the default knows nothing.

    Attributes:
      model_type: of a Hugging Face config.json.
      towers: "image", "text" -> heads, activation, epsilon.
      pixels: of images, where it is said.
      pool: of sentence-transformers: "first" or "mean"; None: not said.
      normalise: whether vectors are divided by their norm; None: not said.
      length: tokens of a text at most; None: not said.
      prompts: texts that belong in front of queries or documents (E5's "query: "), by use.
      tokenizer: the folder or file of the tokenizer; None: there is none.
    """

    model_type: str = ""
    towers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pixels: Pixels | None = None
    pool: str | None = None
    normalise: bool | None = None
    length: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    tokenizer: Path | None = None

    def of(self, side: str) -> Mapping[str, Any]:
        """Heads, activation and epsilon of a side, as far as they are known."""
        return self.towers.get(side, {})


def read_settings(folder: Path) -> Settings:
    """The settings of a model folder: open_clip's, sentence-transformers', timm's, Hugging Face's.

    Raises:
      UserError: a file that cannot be read, or a model that is something else than it must be.
    """
    if (folder / "open_clip_config.json").is_file():
        return _open_clip(folder)
    return _hugging_face(folder) if (folder / "config.json").is_file() else Settings()


def _tokenizer(folder: Path) -> Path | None:
    return folder if any((folder / name).is_file() for name in TOKENIZER_FILES) else None


def _activation(name: Any, path: Path) -> str:
    if name not in ACTIVATIONS:
        raise UserError(
            f"{path}: the activation {name!r} is not one of {', '.join(sorted(ACTIVATIONS))}."
        )
    return ACTIVATIONS[name]


def _hugging_face(folder: Path) -> Settings:
    path = folder / "config.json"
    config = read_json(path)
    kind = str(config.get("model_type", ""))
    if "architecture" in config and "pretrained_cfg" in config:
        return _timm(config)
    if kind == "clip":
        text = {**_HF_TEXT, **(config.get("text_config") or {})}
        vision = {**_HF_VISION, **(config.get("vision_config") or {})}
        towers = {"text": _attention(text, path), "image": _attention(vision, path)}
    else:
        side = "image" if kind in ("vit", "resnet", "clip_vision_model") else "text"
        usual = {"clip_vision_model": _HF_VISION, "clip_text_model": _HF_TEXT}.get(kind, {})
        towers = {side: _attention({**usual, **config}, path)}
    ours = _of_an_export(config, path)
    return Settings(
        model_type=kind,
        towers=towers,
        pixels=_preprocessor(folder),
        pool=ours.get("pool"),
        normalise=ours.get("normalise"),
        length=None,
        tokenizer=_tokenizer(folder),
    )


def _of_an_export(config: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """What an export of ours adds to config.json: `pool` and `normalise`, which it does not say.

    Raises:
      UserError: it is something else.
    """
    ours = config.get("big_retrieval", {})
    known = {"pool": (None, "first", "mean"), "normalise": (None, True, False)}
    if not isinstance(ours, Mapping) or any(ours.get(k) not in v for k, v in known.items()):
        raise UserError(f"{path}: big_retrieval is {ours!r}, which no export wrote; restore it.")
    return ours


def _attention(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    heads = config.get("num_attention_heads", config.get("n_heads"))
    name = config.get("hidden_act", config.get("activation"))
    found: dict[str, Any] = {"heads": heads, "epsilon": config.get("layer_norm_eps")}
    return found | {"activation": None if name is None else _activation(name, path)}


def _preprocessor(folder: Path) -> Pixels | None:
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return None
    config = read_json(path)
    short = _side(config.get("size"))
    size = _side(config.get("crop_size")) or short
    return Pixels(
        size=size,
        resize=short if short and size and short > size else 0,
        mean=tuple(config.get("image_mean", CLIP_MEAN)),
        std=tuple(config.get("image_std", CLIP_STD)),
    )


def _side(size: Any) -> int | None:
    """A size in pixels, which is a number or says it by name."""
    if isinstance(size, Mapping):
        return size.get("height") or size.get("shortest_edge")
    return size or None


def _timm(config: Mapping[str, Any]) -> Settings:
    made = config["pretrained_cfg"]
    size = (made.get("input_size") or [3, None])[1]
    pixels = Pixels(size, tuple(made.get("mean", CLIP_MEAN)), tuple(made.get("std", CLIP_STD)))
    clip = "_clip" in str(config["architecture"])
    quick = "quickgelu" in str(config["architecture"])
    tower = {"epsilon": 1e-5 if clip else 1e-6, "activation": "quick_gelu" if quick else "gelu"}
    return Settings(towers={"image": tower}, pixels=pixels)


def _open_clip(folder: Path) -> Settings:
    path = folder / "open_clip_config.json"
    whole = read_json(path)
    model, made = whole.get("model_cfg", {}), whole.get("preprocess_cfg", {})
    vision, text = model.get("vision_cfg", {}), model.get("text_cfg", {})
    inside = str(text.get("hf_model_name", ""))
    pooler = str(text.get("hf_pooler_type", text.get("pooler_type", "mean_pooler")))
    known = "bert" in inside.lower() and pooler == "mean_pooler"
    for key, value in {"timm_model_name": vision, "hf_model_name": text}.items():
        if key in value and not (key == "hf_model_name" and known):
            raise UserError(
                f"{path}: {key} {value[key]!r} is a tower of another library inside open_clip, "
                "which is not imported; import that library's own checkpoint."
            )
    activation = "quick_gelu" if model.get("quick_gelu") else "gelu"
    width = vision.get("width", 768)
    common = {"activation": activation, "epsilon": 1e-5}
    of_text = {**common, "heads": text.get("heads", 8)}
    if inside:  # what is usual for it; the file says nothing
        of_text = {"heads": text.get("heads")}
    return Settings(
        model_type="roberta" if "roberta" in inside.lower() else "",
        towers={
            "image": {**common, "heads": width // vision.get("head_width", 64)},
            "text": of_text,
        },
        pixels=Pixels(
            size=vision.get("image_size"),
            mean=tuple(made.get("mean", CLIP_MEAN)),
            std=tuple(made.get("std", CLIP_STD)),
        ),
        length=text.get("context_length"),
        tokenizer=_tokenizer(folder),
    )
