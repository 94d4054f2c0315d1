"""Images as a field: their size, crops and colours."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config.fields import EncodedField, Shapes, Side
from big_retrieval.config.ranges import (
    AtLeast0,
    AtLeast1,
    Positive,
    Share,
)
from big_retrieval.config.registry import register
from big_retrieval.config.torch_form import TorchContext, TorchForm, keys

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.data.fields.reader import FieldReader, Tools


@register("field")
@dataclass(frozen=True)
class ImageField(EncodedField):
    """One image of a record; arrays {"pixels": uint8 [B, size, size, 3]}."""

    modality: ClassVar[str] = "image"
    type: Literal["image"] = "image"
    side: Side = "document"
    tower: str = "image"
    column: str = "image"
    size: AtLeast1 = 224  # pixels, square
    # what evaluations resize the short side to before they cut the central square; 0: to `size`
    eval_resize: AtLeast0 = 0
    # evaluations resize both sides instead of the short one: the aspect ratio changes
    eval_squash: bool = False
    # filter that evaluations resize with; training uses that of `loader.decoder`
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    # rounding of half a pixel of margin in evaluations, as torchvision or as transformers ("down")
    eval_margin: Literal["even", "down"] = "even"
    crop_scale: tuple[float, float] = (0.5, 1.0)  # share of the area; (1, 1): no crop
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    flip: Share = 0.5  # probability
    flip_unsafe_words: tuple[str, ...] = ("left", "right")  # captions that a flip makes untrue
    # probability that training fills a rectangle, 2% to 33% of the area, with the colour `mean`,
    # which is 0 behind the normalisation
    erasing: Share = 0.0
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[Positive, Positive, Positive] = (0.26862954, 0.26130258, 0.27577711)

    def check(self, config: "Config", path: str) -> Iterator[str]:
        low, high = self.crop_scale
        if not 0 < low <= high <= 1:
            yield f"{path}.crop_scale is {self.crop_scale}; it must be 0 < low <= high <= 1."
        if not 0 < self.crop_ratio[0] <= self.crop_ratio[1]:
            yield f"{path}.crop_ratio is {self.crop_ratio}; it must be 0 < low <= high."
        if 0 < self.eval_resize < self.size:
            yield (
                f"{path}.eval_resize is {self.eval_resize}, less than size {self.size}; set it to "
                "that at least, or to 0."
            )

    def build(self, tools: "Tools") -> "FieldReader":
        from big_retrieval.data.fields.images import ImageReader

        return ImageReader(self, tools.loader.decoder, tools.loader.reduced)

    def evaluation_view(self) -> dict[str, Any]:
        """Returns the keyword arguments of `transforms.evaluation_view`."""
        own = {"squash": self.eval_squash, "margin": self.eval_margin}
        return {"short": self.eval_resize, **own, **keys(self, "interpolation")}

    def shapes(self) -> Shapes:
        return {"pixels": ((self.size, self.size, 3), "uint8")}

    def inputs(self, arrays: Mapping[str, Any], dtype: Any) -> tuple[Any, ...]:
        """Pixels with the channels' mean and deviation taken out, [B, S, S, 3]."""
        return (self.normalised(arrays["pixels"]).astype(dtype),)

    def normalised(self, pixels: Any) -> Any:
        """uint8 pixels [B, S, S, 3] to float32 with the channels' mean and deviation taken out."""
        import jax.numpy as jnp

        mean, std = jnp.asarray(self.mean, jnp.float32), jnp.asarray(self.std, jnp.float32)
        return (pixels.astype(jnp.float32) / 255 - mean) / std

    def pytorch(self, context: TorchContext) -> TorchForm:
        reads = {"size": self.size, "resize": self.eval_resize}
        usual = ImageField()
        others = {
            "squash": "eval_squash",
            "interpolation": "interpolation",
            "margin": "eval_margin",
        }
        for name, key in others.items():
            if getattr(self, key) != getattr(usual, key):
                reads[name] = getattr(self, key)
        return TorchForm("normalised", keys(self, "mean", "std"), call=("pixels",), reads=reads)

    def shrunk(self) -> "ImageField":
        return dataclasses.replace(
            self,
            size=32,
            eval_resize=0,
            eval_squash=False,
            interpolation="bicubic",
            eval_margin="even",
            flip=0.0,
            erasing=0.0,
            crop_scale=(0.9, 1.0),
            head=self.head.runlocal(),
        )

    def in_graded_scenes(self) -> "ImageField":
        return dataclasses.replace(self, column="image")
