"""The target `open_clip`: a folder for `local-dir:`, of CLIP's two towers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from big_retrieval.exporting.clip import clip_problems, open_clip_arrays
from big_retrieval.exporting.hugging_face import several
from big_retrieval.exporting.parts import Encoding, Exported, unlike
from big_retrieval.exporting.target import (
    ExportTarget,
    ends,
    save_arrays,
    save_json,
    write_tokenizer,
)

EPSILON = 1e-5
VOCABULARY = 49_408  # ids of CLIP's tokenizer, open_clip's default


class OpenClip(ExportTarget):
    """Folders of open_clip."""

    packages: ClassVar[tuple[str, ...]] = ("open_clip_torch", "torch", "transformers")
    tags: ClassVar[tuple[str, ...]] = ("open_clip", "clip")

    def problems(self, model: Exported) -> Iterator[str]:
        if model.modalities != ["image", "text"]:
            names = ", ".join(model.encodings[0].fields)
            one = f"the encoder of {names} alone (it holds an image and a text encoder)"
            yield one if len(model.encodings) == 1 else several(model)
            return
        yield from clip_problems(model)
        image, text = model.encoding_of("image"), model.encoding_of("text")
        for encoding in (image, text):
            path = f"config.towers.{encoding.tower_name}"
            keys = {"activation": ("gelu", "quick_gelu"), "epsilon": EPSILON}
            yield from unlike(path, encoding.tower, keys)
            if _ratio(encoding) is None:
                yield f"{path}.mlp {encoding.tower.mlp} with a width of {encoding.tower.width}"
        if image.tower.activation != text.tower.activation:
            yield "two towers of different activations"
        if image.field.eval_resize not in (0, image.field.size):
            yield f"config.fields.{image.name}.eval_resize {image.field.eval_resize}"
        yield from text.prefix_problems()

    def write(self, model: Exported, folder: Path) -> None:
        image, text = model.encoding_of("image"), model.encoding_of("text")
        config = {
            "embed_dim": image.head.dim,
            "quick_gelu": image.tower.activation == "quick_gelu",
            "vision_cfg": {
                "image_size": image.field.size,
                "layers": image.tower.depth,
                "width": image.tower.width,
                "head_width": image.tower.width // image.tower.heads,
                "mlp_ratio": _ratio(image),
                "patch_size": image.tower.patch,
            },
            "text_cfg": {
                "context_length": text.positions,
                "vocab_size": text.params["token_embedding"].shape[0],
                "width": text.tower.width,
                "heads": text.tower.heads,
                "layers": text.tower.depth,
                "mlp_ratio": _ratio(text),
                **_end_of_text(model, text),
            },
        }
        pixels = {
            "size": image.field.size,
            "mode": "RGB",
            "mean": list(image.field.mean),
            "std": list(image.field.std),
            "interpolation": image.field.interpolation,
            "resize_mode": "squash" if image.field.eval_squash else "shortest",
            "fill_color": 0,
        }
        settings = {"model_cfg": config, "preprocess_cfg": pixels}
        save_json(folder / "open_clip_config.json", settings)
        save_arrays(folder / "open_clip_model.safetensors", open_clip_arrays(model))
        write_tokenizer(model, folder, text.positions)

    def usage(self, model: Exported) -> str:
        return """\
import open_clip

model, _, preprocess = open_clip.create_model_and_transforms("local-dir:FOLDER")
tokenizer = open_clip.get_tokenizer("local-dir:FOLDER")
texts = model.encode_text(tokenizer(["a text"]), normalize=True)
images = model.encode_image(preprocess(image)[None], normalize=True)"""


def _ratio(encoding: Encoding) -> float | None:
    """Returns the MLP's width as a multiple of the tower's; None if open_clip would round it."""
    ratio = encoding.tower.mlp / encoding.tower.width
    return ratio if int(encoding.tower.width * ratio) == encoding.tower.mlp else None


def _end_of_text(model: Exported, text: Encoding) -> dict[str, Any]:
    """Returns the keys of open_clip's tokenizer and pooling."""
    _, end = ends(model)
    keys: dict[str, Any] = {"pad_id": model.tokenizer.pad_id}
    if model.tokenizer.clean != "clip" or model.tokenizer.vocab_size != VOCABULARY:
        keys["hf_tokenizer_name"] = "."  # any name means the folder's files
    if end != text.params["token_embedding"].shape[0] - 1:  # the default, the largest id
        keys |= {"pool_type": "eos", "eos_id": end}
    return keys
