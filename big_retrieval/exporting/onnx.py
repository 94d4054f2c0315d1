"""The target `onnx`: a file per encoder, and a Python file that needs only onnxruntime.

The other process writes the ONNX files (`reference_encoder.write_onnx_files`) from an export to
`torch`, whose files are then removed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from big_retrieval.errors import UserError
from big_retrieval.exporting.library import Job, ask
from big_retrieval.exporting.parts import Encoding, Exported
from big_retrieval.exporting.torch import Torch
from big_retrieval.exporting.torch_forms import TorchForm
from big_retrieval.exporting.torch_module import (
    FOLDER,
    READERS,
    embeddings_of,
    head_name,
    members_of,
    program,
    reader_files,
    reader_settings,
    tokenizer_construction,
)

LIBRARIES = ("torch", "onnx", "onnxscript")  # write ONNX files
_WIDER = {"float16": "float32", "int32": "int64"}  # ONNX counts in int64
_SIZES = {"batch": 2, "rows": 2, "columns": 3}  # sizes of free axes while tracing


@dataclass(frozen=True)
class OnnxEncoder:
    """Encoder of a field."""

    encoding: Encoding
    file: str  # its ONNX file; fields with the same encoder share one
    arrays: Sequence[tuple[str, str, Sequence[int | str]]]  # name, type, shape with names of axes
    form: TorchForm  # pads texts of a tower that is traced for one length

    def graph(self) -> dict[str, Any]:
        """Returns the request for `reference_encoder.write_onnx_files`."""
        return {
            "file": self.file,
            "method": f"embed_{self.encoding.name}",
            "sizes": {**_SIZES, "length": self.encoding.field.length},
            "arrays": self.arrays,
        }


class Onnx(Torch):
    """Folders with ONNX files."""

    packages: ClassVar[tuple[str, ...]] = ("onnxruntime", "tokenizers", "pillow", "numpy")
    tags: ClassVar[tuple[str, ...]] = ("onnx",)
    opening: ClassVar[tuple[str, str]] = (
        "from encode import OnnxModel",
        'model = OnnxModel("FOLDER")',
    )
    arrays: ClassVar[str] = "numpy"

    def write(self, model: Exported, folder: Path) -> None:
        super().write(model, folder)
        (folder / "encode.py").write_text(_source(model), encoding="utf-8")

    def convert(self, model: Exported, folder: Path, python: str) -> None:
        graphs = {encoder.file: encoder.graph() for encoder in reversed(_encoders(model))}
        request = {
            "to": "onnx files",
            "packages": LIBRARIES,
            "graphs": [*graphs.values(), *_scores(model)],
        }
        [answer] = ask([Job(folder, request, {})], python)
        if answer.problem:
            needs = f" It needs {', '.join(LIBRARIES)} and onnxruntime, or another --python."
            raise UserError(
                f"Cannot write ONNX files: {answer.problem}.{needs if answer.missing else ''}"
            )
        for name in ("model.py", "model.safetensors"):
            (folder / name).unlink()


def _encoders(model: Exported) -> list[OnnxEncoder]:
    """Returns the encoders of all fields."""
    fixed_names = {x.name for x in members_of(model) if not x.is_field and x.form.fixed_length}
    files: dict[str, str] = {}
    encoders = []
    for encoding in model.encodings:
        embedding = embeddings_of(model)[encoding.name]
        form = embedding.field
        # An axis of one element would be traced as a constant.
        fixed = encoding.field.length < 2 or bool(
            fixed_names & {encoding.tower_name, head_name(encoding)}
        )
        if fixed and encoding.field.modality == "text":
            form = replace(form, reads={**form.reads, "fill": True})
        shapes, arrays = encoding.field.shapes(), []
        for name in form.call:
            shape, dtype = shapes[name]
            if shape == (encoding.field.length,) and not fixed:
                shape = ("length",)
            arrays.append((name, _WIDER.get(dtype, dtype), ["batch", *shape]))
        same = replace(embedding, field=replace(form, reads={}))
        file = files.setdefault(f"{same} {arrays}", f"{encoding.name}.onnx")
        encoders.append(OnnxEncoder(encoding, file, arrays, form))
    return encoders


def _scores(model: Exported) -> list[dict[str, Any]]:
    """Returns the graph that scores dense embeddings; lexical embeddings do not need one."""
    dense = [encoding for encoding in model.encodings if not encoding.head.lexical]
    if not dense:
        return []
    size = model.tokenizer.vocab_size
    shape = dense[0].head.embedding_shape(model.config, dense[0].name, size)
    arrays = [("a", "float32", ["rows", *shape]), ("b", "float32", ["columns", *shape])]
    return [{"file": "scores.onnx", "method": "scores", "sizes": _SIZES, "arrays": arrays}]


def _source(model: Exported) -> str:
    """Returns encode.py."""
    encoders = _encoders(model)
    bases = [f"{name.title()}Reader" for name in READERS if name in model.modalities]
    types = {name: dtype for x in encoders for name, dtype, _ in x.arrays if dtype != "float32"}
    tokenizer = tokenizer_construction(model, "self.folder")
    lines = [
        f"class OnnxModel({', '.join([*bases, 'OnnxFiles'])}):",
        f'    """Encodes {", ".join(encoding.name for encoding in model.encodings)}."""',
        "",
        f"    ENCODERS = { ({x.encoding.name: x.file for x in encoders}) }",
        f"    TYPES = {types}",
        "",
        *reader_settings(model, {x.encoding.name: x.form for x in encoders}),
    ]
    if tokenizer:
        lines += [
            "    def __init__(self, *args: Any, **kwargs: Any) -> None:",
            "        super().__init__(*args, **kwargs)",
            *tokenizer,
        ]
    files = [FOLDER / "onnx_model.py", *reader_files(model)]
    return program("A model for onnxruntime", 'OnnxModel("FOLDER")', files, lines)
