"""Base class of export targets, and the files that several targets write."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from big_retrieval.exporting.parts import Exported
from big_retrieval.interop.settings import ACTIVATIONS
from big_retrieval.io.manifest import to_json

# Activation -> its name in all versions of transformers.
HIDDEN_ACT = {name: key for key, name in ACTIVATIONS.items()} | {"gelu_tanh": "gelu_pytorch_tanh"}


class ExportTarget:
    """Library that an export is for.

    Attributes:
      name: value of `--to`.
      packages: distributions whose versions are in the certificate, starting with the library.
      tags: tags of the model card.
      apart: True if each field is exported as its own encoder, see `take_apart`.
      framed: True if `text_problems` applies to the target.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    tags: ClassVar[tuple[str, ...]] = ()
    apart: ClassVar[bool] = False
    framed: ClassVar[bool] = True

    def __init__(self, name: str) -> None:
        self.name = name

    def problems(self, model: Exported) -> Iterator[str]:
        """Yields config keys and values that the target does not support, for an error message."""
        raise NotImplementedError

    def write(self, model: Exported, folder: Path) -> None:
        """Writes the library's files of a model without `problems` into an empty folder."""
        raise NotImplementedError

    def convert(self, model: Exported, folder: Path, python: str) -> None:
        """Writes files that need the library, in the process of another Python.

        Raises:
          UserError: the files cannot be written there.
        """

    def computes(self, model: Exported) -> Mapping[str, Any]:
        """Returns the settings with which `reference_encoder` encodes."""
        return {"normalise": model.normalises()}

    def usage(self, model: Exported) -> str:
        """Returns lines of Python that encode inputs with the folder FOLDER."""
        raise NotImplementedError


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a safetensors file for PyTorch; floating-point numbers as float32."""
    from safetensors.numpy import save_file

    def dtype(array: np.ndarray) -> Any:
        return None if array.dtype.kind in "biu" else np.float32

    # Not `ascontiguousarray`, which turns scalars into vectors.
    ready = {name: np.asarray(x, dtype(x), order="C") for name, x in arrays.items()}
    path.touch()
    mode = path.stat().st_mode  # `save_file` writes a file that only its owner can read
    save_file(ready, path, metadata={"format": "pt"})
    path.chmod(mode)


def save_json(path: Path, value: Any) -> None:
    """Writes a settings file."""
    path.write_bytes(to_json(value))


def write_tokenizer(
    model: Exported, folder: Path, length: int, *, token_types: bool = False
) -> None:
    """Writes tokenizer.json and tokenizer_config.json for `AutoTokenizer`.

    Args:
      length: maximum number of tokens per text.
      token_types: True if the architecture reads `token_type_ids`.
    """
    tokenizer = model.tokenizer
    tokenizer.save(folder / "tokenizer.json")
    start, end = ends(model)
    pad = tokenizer.id_to_token(tokenizer.pad_id)
    names = {
        # CLIP pads with the id of "!", which is not special, so that "!" remains a word.
        "pad_token": pad if pad in tokenizer.special_tokens else tokenizer.id_to_token(end),
        "cls_token": tokenizer.id_to_token(start),
        "bos_token": tokenizer.id_to_token(start),
        "sep_token": tokenizer.id_to_token(end),
        "eos_token": tokenizer.id_to_token(end),
    }
    for key, token in (("unk_token", "[UNK]"), ("mask_token", "[MASK]")):
        if token in tokenizer.special_tokens:
            names[key] = token
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # reads tokenizer.json unmodified
        "model_max_length": length,
        "model_input_names": ["input_ids", *["token_type_ids"] * token_types, "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    save_json(folder / "tokenizer_config.json", {**settings, **names})


def ends(model: Exported) -> tuple[int, int]:
    """Returns the first and the last id of every text, of a model without `text_problems`."""
    ids, mask = model.tokenizer.encode([""], 8)
    frame = ids[0][mask[0]]
    return int(frame[0]), int(frame[-1])


def text_problems(model: Exported) -> Iterator[str]:
    """Yields properties of the tokenizer that libraries do not support."""
    if model.tokenizer.clean == "words":
        yield "a tokenizer of the type 'words'"
    _, mask = model.tokenizer.encode([""], 8)
    if mask.sum() < 2:
        yield "a tokenizer without a token before and after every text"


def write_preprocessor(field: Any, folder: Path) -> None:
    """Writes preprocessor_config.json: the view of an image in evaluations."""
    side = field.eval_resize or field.size
    settings = {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": side, "width": side} if field.eval_squash else {"shortest_edge": side},
        "resample": {"bilinear": 2, "bicubic": 3}[field.interpolation],
        "do_center_crop": True,
        "crop_size": {"height": field.size, "width": field.size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(field.mean),
        "image_std": list(field.std),
    }
    save_json(folder / "preprocessor_config.json", settings)
