"""The target `torch`: weights, tokenizer and one PyTorch module, written for the model."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from big_retrieval.config import Config
from big_retrieval.errors import UserError
from big_retrieval.exporting.parts import Exported
from big_retrieval.exporting.target import ExportTarget, save_arrays
from big_retrieval.exporting.torch_forms import has_torch_form
from big_retrieval.exporting.torch_module import (
    CLEANERS,
    READERS,
    SCALARS,
    head_name,
    members_of,
    source_of,
)
from big_retrieval.interop.model import LOSS
from big_retrieval.interop.source import Flat
from big_retrieval.interop.torch_weights import STATS, WEIGHTS, from_torch, to_torch, write_config


class Torch(ExportTarget):
    """Folders with a PyTorch module."""

    packages: ClassVar[tuple[str, ...]] = ("torch", "safetensors", "tokenizers", "pillow", "numpy")
    tags: ClassVar[tuple[str, ...]] = ("pytorch",)
    apart: ClassVar[bool] = True
    framed: ClassVar[bool] = False
    opening: ClassVar[tuple[str, str]] = (
        "from model import RetrievalModel",
        'model = RetrievalModel.load("FOLDER")',
    )
    arrays: ClassVar[str] = "torch"  # library of arrays

    def problems(self, model: Exported) -> Iterator[str]:
        for member in members_of(model):
            if not has_torch_form(member.part):
                yield f"{member.path} of the type {member.part.type!r} (it has no `torch_form`)"
        if "text" in model.modalities and model.tokenizer.clean not in CLEANERS:
            yield f"a tokenizer that cleans texts as {model.tokenizer.clean!r}"

    def write(self, model: Exported, folder: Path) -> None:
        arrays = _arrays(model)
        if lost := {path for path, x in arrays.items() if not _is_invertible(path, x)}:
            raise UserError(f"--to=torch has no name for the parameter {min(lost)}. Rename it.")
        written = to_torch(arrays)
        for member in members_of(model):
            buffers = member.form.buffers.items()
            written |= {f"{member.name}.{name}": np.asarray(x) for name, x in buffers}
        save_arrays(folder / WEIGHTS, written)
        model.tokenizer.save(folder / "tokenizer.json")
        write_config(_config(model), arrays, folder)
        (folder / "model.py").write_text(source_of(model), encoding="utf-8")

    def computes(self, model: Exported) -> Mapping[str, Any]:
        return {
            "modalities": {encoding.name: encoding.field.modality for encoding in model.encodings}
        }

    def usage(self, model: Exported) -> str:
        lines = ["import sys", "", 'sys.path.insert(0, "FOLDER")']
        lines += [self.opening[0], "", self.opening[1]]
        names = [f"{encoding.name}_embeddings" for encoding in model.encodings]
        for name, encoding in zip(names, model.encodings, strict=True):
            modality = encoding.field.modality
            if modality in READERS:
                values = {"text": '["a text"]', "image": "images"}[modality]
                call = f'{READERS[modality][1]}({values}, "{encoding.name}")'
            else:
                lines[0] = f"import sys\n\nimport {self.arrays}"
                arrays = encoding.field.shapes().items()
                zeros = [f"{key}={self.arrays}.zeros({(1, *shape)})" for key, (shape, _) in arrays]
                call = f'encode("{encoding.name}", {", ".join(zeros)})'
            lines.append(f"{name} = model.{call}")
        lines.append(f"scores = model.scores({names[0]}, {names[-1]})")
        return "\n".join(lines)


def _config(model: Exported) -> Config:
    """Returns the configuration of the exported fields, for an import."""
    names = {encoding.name for encoding in model.encodings}
    if names == set(model.config.encoded):
        return model.config
    names |= {encoding.field.shares_head for encoding in model.encodings}  # owners of heads
    fields = {name: x for name, x in model.config.encoded.items() if name in names}
    towers = {field.tower: model.config.towers[field.tower] for field in fields.values()}
    losses = {"main": LOSS}
    return dataclasses.replace(model.config, fields=fields, towers=towers, losses=losses)


def _arrays(model: Exported) -> Flat:
    """Returns parameters and running averages of the exported towers and heads, and scalars."""
    names = {SCALARS}
    for encoding in model.encodings:
        names |= {encoding.tower_name, head_name(encoding)}
    paths = [path for path in model.params if path.removeprefix(STATS).split("/")[0] in names]
    return {path: model.params[path] for path in paths}


def _is_invertible(path: str, array: np.ndarray) -> bool:
    """Returns True if an import reads a parameter under the same path."""
    return list(from_torch(to_torch({path: array}))) == [path]
