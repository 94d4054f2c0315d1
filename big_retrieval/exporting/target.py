"""What an export target is: a library whose folders are written, with what it cannot hold."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from big_retrieval.exporting.layers import Layers
from big_retrieval.exporting.parts import Encoding, Exported
from big_retrieval.interop.settings import ACTIVATIONS
from big_retrieval.io.manifest import to_json

# Ours -> the name that every version of transformers has.
HIDDEN_ACT = {ours: theirs for theirs, ours in ACTIVATIONS.items() if theirs != "gelu_fast"}
HIDDEN_ACT["gelu_tanh"] = "gelu_pytorch_tanh"


class ExportTarget:
    """The base of all targets.

    Attributes:
      name: of `--to`.
      packages: the distributions whose versions the certificate names, the library's first.
      tags: of the model card.
      apart: whether fields of one encoder may be read differently, see `take_apart`.
      framed: whether texts must have what `text_problems` says.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    tags: ClassVar[tuple[str, ...]] = ()
    apart: ClassVar[bool] = False
    framed: ClassVar[bool] = True

    def __init__(self, name: str) -> None:
        self.name = name

    def problems(self, model: Exported) -> Iterator[str]:
        """What the target cannot hold, as the object of a sentence; nothing: it can hold all.

        Args:
          model: to be exported.
        """
        raise NotImplementedError

    def write(self, model: Exported, folder: Path) -> None:
        """Writes the files that the library opens.

        Args:
          model: without `problems`.
          folder: an empty one.
        """
        raise NotImplementedError

    def convert(self, model: Exported, folder: Path, python: str) -> None:
        """Makes what only the other process can make of the files of `write`; mostly nothing.

        Args:
          model: as in `write`.
          folder: the same.
          python: of `library.interpreter`.

        Raises:
          UserError: it cannot be made there.
        """

    def computes(self, model: Exported) -> Mapping[str, Any]:
        """What the other process must know to compute our embeddings, beside the folder."""
        return {"normalise": model.normalises()}

    def layers(self, model: Exported) -> dict[str, Layers]:
        """Our layers and the library's modules that give them, of a field of each encoder.

        A layer's name is its number, "0" and so on, or "final", see `Encoder.features`; a module's
        is its path, such as "encoder.layer.0", or the end of the path. Where embeddings differ, the
        certificate names the first of these layers that differs, so all may be left out.
        """
        return {}

    def usage(self, model: Exported) -> str:
        """A few lines of Python that encode something with the folder FOLDER."""
        raise NotImplementedError


def by_field(model: Exported, layers: Callable[[Encoding], Layers]) -> dict[str, Layers]:
    """`ExportTarget.layers` by the first field of each encoder that has layers."""
    return {part.name: found for part in model.encodings if (found := layers(part))}


def numbered(part: Encoding, stack: str, norm: str = "") -> Layers:
    """`ExportTarget.layers` of a transformer.

    Args:
      part: an encoder.
      stack: path of the list of layers.
      norm: path of the norm behind the last layer; "": there is none.
    """
    found = [(str(number), f"{stack}.{number}") for number in range(part.tower.depth)]
    return [*found, ("final", norm)] if norm else found


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a safetensors file as PyTorch's libraries write theirs.

    Args:
      path: of the file.
      arrays: name -> array; floating-point numbers are written as float32.
    """
    from safetensors.numpy import save_file

    def kind(array: np.ndarray) -> Any:
        return None if array.dtype.kind in "biu" else np.float32

    # Not `ascontiguousarray`, which makes vectors of scalars.
    ready = {name: np.asarray(x, kind(x), order="C") for name, x in arrays.items()}
    path.touch()
    mode = path.stat().st_mode  # the library would write a file that only its owner can read
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
      model: whose tokenizer it is.
      folder: to write to.
      length: maximum number of tokens of a text.
      token_types: True if the architecture reads `token_type_ids`.
    """
    tokenizer = model.tokenizer
    tokenizer.save(folder / "tokenizer.json")
    start, end = ends(model)
    pad = tokenizer.id_to_token(tokenizer.pad_id)
    names = {
        # CLIP pads with the id of "!", which would be no word any more if it were special.
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
        "tokenizer_class": "PreTrainedTokenizerFast",  # which takes tokenizer.json as it is
        "model_max_length": length,
        "model_input_names": ["input_ids", *["token_type_ids"] * token_types, "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    save_json(folder / "tokenizer_config.json", {**settings, **names})


def ends(model: Exported) -> tuple[int, int]:
    """The ids in front of and behind every text, of a model without `text_problems`."""
    ids, mask = model.tokenizer.encode([""], 8)
    own = ids[0][mask[0]]
    return int(own[0]), int(own[-1])


def text_problems(model: Exported) -> Iterator[str]:
    """What libraries cannot hold of how texts are tokenized, see `ExportTarget.problems`."""
    if model.tokenizer.clean == "words":
        yield "a tokenizer of the type 'words', which cleans texts in a way of its own"
    _, mask = model.tokenizer.encode([""], 8)
    if mask.sum() < 2:
        yield "a tokenizer without a token in front of and behind every text"


def write_preprocessor(field: Any, folder: Path) -> None:
    """Writes preprocessor_config.json: our evaluation view of an image."""
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
