"""Image preprocessing of other libraries, from their settings files."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from big_retrieval.data.images.transforms import CLIP_MEAN, CLIP_STD, Interpolation, Margin
from big_retrieval.interop.hugging_face_keys import PREPROCESSOR, PROCESSOR
from big_retrieval.interop.settings_file import SettingsFile

_HALF = (0.5, 0.5, 0.5)
_FILTERS: Mapping[Any, Interpolation] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_NAMES: Mapping[Any, Interpolation] = {"bilinear": "bilinear", "bicubic": "bicubic"}
RESCALE = 1 / 255


@dataclass(frozen=True)
class Pixels:
    """Image preprocessing; means and deviations per channel, of values in [0, 1]."""

    size: int | None = None  # side of the central square in pixels
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD
    resize: int = 0  # side before the crop in pixels; 0 for `size`
    squash: bool = False  # True if both sides are resized, not the short side
    interpolation: Interpolation = "bicubic"
    margin: Margin = "even"  # rounding of half a pixel of margin

    def field_keys(self) -> dict[str, Any]:
        """Returns the keys of an image field except its size."""
        keys = dataclasses.asdict(self)
        del keys["size"]
        for key in ("resize", "squash", "margin"):
            keys[f"eval_{key}"] = keys.pop(key)
        return keys


IMAGENET = Pixels(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def _channels(file: SettingsFile, key: str, default: Any) -> Any:
    """Returns the values of the three channels."""
    value = file.get(key)
    if value is None:
        return default
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (float(value),) * 3
    if not (isinstance(value, list) and len(value) == 3) or not all(
        isinstance(x, int | float) for x in value
    ):
        raise file.refused(key, "it must have one number for each of three channels")
    return tuple(value)


def image_side(file: SettingsFile, key: str) -> int | None:
    """Returns the side of square images in pixels: a number, or two equal ones; None if missing."""
    value = file.get(key)
    sides = value if isinstance(value, list) else [value]
    if value is None:
        return None
    if len(set(map(str, sides))) != 1 or not isinstance(sides[0], int) or sides[0] < 1:
        raise file.refused(key, "only square images of a size in pixels can be imported")
    return sides[0]


def open_clip_pixels(file: SettingsFile, image_size: int) -> Pixels:
    """Returns the preprocessing of open_clip's `preprocess_cfg`."""
    if image_side(file, "size") not in (None, image_size):
        raise file.refused("size", f"image_size is {image_size}, and both must be the same")
    modes: dict[Any, bool] = {"shortest": False, None: False, "squash": True}
    filters = {**_NAMES, None: "bicubic", "random": "bicubic"}
    return Pixels(
        size=image_size,
        mean=_channels(file, "mean", CLIP_MEAN),
        std=_channels(file, "std", CLIP_STD),
        squash=file.choice("resize_mode", modes, "shortest"),
        interpolation=file.choice("interpolation", filters, "bicubic"),
    )


def timm_pixels(file: SettingsFile) -> Pixels:
    """Returns the evaluation preprocessing of timm's `pretrained_cfg`."""
    shape = file.get("input_size") or [3, None, None]
    if not isinstance(shape, list) or len(shape) != 3 or shape[0] != 3 or shape[1] != shape[2]:
        raise file.refused("input_size", "only square images of 3 channels can be imported")
    size, share = shape[1], file.number("crop_pct", 0.875)
    if not 0 < share <= 1:
        raise file.refused("crop_pct", "it must be more than 0 and at most 1")
    modes: dict[Any, bool] = {"center": False, None: False, "squash": True}
    return Pixels(
        size=size,
        mean=_channels(file, "mean", IMAGENET.mean),
        std=_channels(file, "std", IMAGENET.std),
        resize=_unless_equal(math.floor((size or 224) / share), size or 224),
        squash=file.choice("crop_mode", modes, "center"),
        interpolation=file.choice("interpolation", _NAMES, "bicubic"),
    )


def _unless_equal(resize: int, size: int) -> int:
    return resize if resize != size else 0


# Defaults of transformers' classes: size, crop (None for no crop), filter, mean and deviation.
_CLIP = ({"shortest_edge": 224}, 224, 3, CLIP_MEAN, CLIP_STD)
_PROCESSORS: dict[str, tuple[Any, int | None, int, Any, Any]] = {
    "CLIP": _CLIP,
    "ChineseCLIP": _CLIP,
    "Bit": _CLIP,
    "ViT": ({"height": 224, "width": 224}, None, 2, _HALF, _HALF),
    "Siglip": ({"height": 224, "width": 224}, None, 3, _HALF, _HALF),
    "DeiT": ({"height": 256, "width": 256}, 224, 3, _HALF, _HALF),
    "ConvNext": ({"shortest_edge": 384}, None, 3, _HALF, _HALF),
}
_DEFAULT_PROCESSORS = {"vit": "ViT", "resnet": "ConvNext"}  # by model_type, if no class is named
_CONVNEXT_SQUASH = 384  # from this size on, this class does not crop


def hugging_face_pixels(folder: Path, model_type: str) -> Pixels | None:
    """Returns the preprocessing of a transformers folder; None if it has no settings for images.

    Raises:
      UserError: a key that is unknown or has a value that cannot be imported.
    """
    if (folder / "preprocessor_config.json").is_file():
        settings = file = SettingsFile.open(folder / "preprocessor_config.json", PREPROCESSOR)
    else:
        settings = SettingsFile.open(folder / "processor_config.json", PROCESSOR)
        key = "image_processor" if "image_processor" in settings else "feature_extractor"
        if key not in settings:
            return None
        file = settings.inside(key)
    old_name, name = file.get("feature_extractor_type"), file.get("image_processor_type")
    processor = str(name or old_name or _DEFAULT_PROCESSORS.get(model_type, "CLIP"))
    for end in ("Pil", "Fast", "FeatureExtractor", "ImageProcessor"):
        processor = processor.removesuffix(end)
    if processor not in _PROCESSORS:
        key = "image_processor_type" if "image_processor_type" in file else "feature_extractor_type"
        choices = ", ".join(f"{name}ImageProcessor" for name in _PROCESSORS)
        raise file.refused(key, f"only these can be imported: {choices}")
    pixels = _processor_pixels(file, processor)
    settings.finish()
    return pixels


def _processor_pixels(file: SettingsFile, processor: str) -> Pixels:
    size, crop, resample, mean, std = _PROCESSORS[processor]
    for key in ("do_resize", "do_rescale"):
        if file.get(key, True) is not True:
            raise file.refused(key, "only true can be imported")
    if abs(file.number("rescale_factor", RESCALE) - RESCALE) > 1e-6:
        raise file.refused("rescale_factor", "only 1 / 255 can be imported")
    mean, std = _channels(file, "image_mean", mean), _channels(file, "image_std", std)
    if file.get("do_normalize", True) is not True:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    short, squash = _sides(file, "size", size, square=processor in ("ViT", "Siglip", "DeiT"))
    cropped = file.get("do_center_crop", crop is not None)
    square, _ = _sides(file, "crop_size", crop or 224, square=True)
    share = file.number("crop_pct", 224 / 256)
    if processor == "ConvNext":
        square, squash = short, short >= _CONVNEXT_SQUASH
        short = short if squash else int(short / share)
    elif "crop_pct" in file:
        raise file.refused("crop_pct", "only ConvNextImageProcessor reads it")
    elif cropped is not True and squash:
        square = short
    elif cropped is not True:
        raise file.refused("do_center_crop", "images that stay oblong cannot be imported")
    if square > short:
        raise file.refused("crop_size", f"it is more than the resized image, {short} pixels")
    return Pixels(
        size=square,
        mean=mean,
        std=std,
        resize=_unless_equal(short, square),
        squash=squash,
        interpolation=file.choice("resample", _FILTERS, resample),
        margin="down",
    )


def _sides(file: SettingsFile, key: str, default: Any, *, square: bool) -> tuple[int, bool]:
    """Returns a size in pixels, and True if it is the size of both sides."""
    value = file.get(key)
    value = default if value is None else value
    by_default = file.get("default_to_square", square)
    if isinstance(value, int) and not isinstance(value, bool):
        is_square = by_default if key == "size" else square
        value = {"height": value, "width": value} if is_square else {"shortest_edge": value}
    if isinstance(value, Mapping):
        sides = list(value.values())
        valid = all(isinstance(x, int) and x > 0 for x in sides) and len(set(sides)) == 1
        if valid and set(value) in ({"shortest_edge"}, {"height", "width"}):
            return sides[0], "height" in value
    raise file.refused(key, "only a shortest_edge, or an equal height and width, can be imported")
