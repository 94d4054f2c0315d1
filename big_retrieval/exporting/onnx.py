"""The target `onnx`: a file for each encoder, and a Python file that needs only onnxruntime.

The ONNX files are written by the other process (`theirs.write_onnx_files`) from what the target
`torch` writes, which is then removed.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from big_retrieval import __version__
from big_retrieval.errors import UserError
from big_retrieval.exporting.layers import Layers
from big_retrieval.exporting.library import Job, ask
from big_retrieval.exporting.parts import Encoding, Exported
from big_retrieval.exporting.torch import Torch
from big_retrieval.exporting.torch_module import (
    READERS,
    Member,
    construction,
    embed_method,
    files_of,
    members_of,
    settings,
    tokenizer_form,
)
from big_retrieval.exporting.torch_source import SourceFiles, call, literal, methods

LIBRARIES = ("torch", "onnx", "onnxscript")  # what writes ONNX files
SCORES = "scores.onnx"
_WIDER = {"float16": "float32", "int32": "int64"}  # as ONNX counts in int64
_SIZES = {"batch": 2, "rows": 2, "columns": 3}  # of axes of any size, while they are traced


@dataclass(frozen=True)
class OnnxEncoder:
    """How a field is encoded.

    Attributes:
      part: its encoder.
      file: of the encoder; fields that are encoded alike have the first one's.
      arrays: (name, type, shape) of what it reads; an axis that may have any size has a name.
      filled: whether texts are filled up to the field's length, as no other can be encoded.
    """

    part: Encoding
    file: str
    arrays: Sequence[tuple[str, str, Sequence[int | str]]]
    filled: bool

    def graph(self) -> dict[str, Any]:
        """What `theirs.write_onnx_files` is asked to write."""
        return {
            "file": self.file,
            "method": f"embed_{self.part.name}",
            "sizes": {**_SIZES, "length": self.part.field.length},
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
        """Writes what the target `torch` writes, which `convert` reads, and encode.py."""
        super().write(model, folder)
        (folder / "encode.py").write_text(_source(model), encoding="utf-8")

    def layers(self, model: Exported) -> dict[str, Layers]:
        """None."""
        return {}  # a graph gives what it returns, and nothing between

    def convert(self, model: Exported, folder: Path, python: str) -> None:
        """Has the other process write the ONNX files, and removes PyTorch's."""
        graphs = {each.file: each.graph() for each in reversed(_encoders(model))}
        request = {
            "to": "onnx files",
            "packages": LIBRARIES,
            "graphs": [*graphs.values(), *_scores(model)],
        }
        [answer] = ask([Job(folder, request, {})], python)
        if answer.missing:
            raise UserError(
                f"--to=onnx: {answer.problem}; {', '.join(LIBRARIES)} write ONNX files, and "
                "onnxruntime verifies them: install them there, or name another Python as --python."
            )
        if answer.problem:
            raise UserError(f"--to=onnx: {answer.problem}; no ONNX files were written.")
        for name in ("model.py", "model.safetensors"):
            (folder / name).unlink()


def _encoders(model: Exported) -> list[OnnxEncoder]:
    """How all fields are encoded."""
    members, known, found = list(members_of(model)), {}, []
    forms = {member.path: member.form for member in members}
    for part in model.encodings:
        filled = part.field.modality == "text" and _has_fixed_length(part, members)
        shapes, arrays = part.field.shapes(), []
        for name in forms[f"config.fields.{part.name}"].call:
            shape, kind = shapes[name]
            free = shape == (part.field.length,) and not filled
            arrays.append(
                (name, _WIDER.get(kind, kind), ["batch", *(("length",) if free else shape)])
            )
        # All of the method but its name.
        told = embed_method(model, part, members).partition("(")[2]
        file = known.setdefault((told, str(arrays)), f"{part.name}.onnx")
        found.append(OnnxEncoder(part, file, arrays, filled))
    return found


def _has_fixed_length(part: Encoding, members: Sequence[Member]) -> bool:
    """Whether the tower or the head of a field of texts is traced for one length alone."""
    owner = f"{part.field.shares_head or part.name}_head"
    used = [member.form for member in members if member.name in (part.tower_name, owner)]
    # An axis of one element would be taken for a constant.
    return part.field.length < 2 or any(form.fixed_length for form in used)


def _scores(model: Exported) -> list[dict[str, Any]]:
    """The graph of the scores of dense embeddings; lexical ones need none."""
    dense = [part for part in model.encodings if not part.head.lexical]
    if not dense:
        return []
    size = model.tokenizer.vocab_size
    shape = dense[0].head.embedding_shape(model.config, dense[0].name, size)
    arrays = [("a", "float32", ["rows", *shape]), ("b", "float32", ["columns", *shape])]
    return [{"file": SCORES, "method": "scores", "sizes": _SIZES, "arrays": arrays}]


# ---- encode.py


def _source(model: Exported) -> str:
    """encode.py."""
    forms = {member.path: member.form for member in members_of(model)}
    encoders = _encoders(model)
    for each in encoders:
        path = f"config.fields.{each.part.name}"
        if each.filled:
            reads = {**forms[path].reads, "fill": True}
            forms[path] = dataclasses.replace(forms[path], reads=reads)
    sources = SourceFiles(files_of(()))
    constants = "\n".join([_constants(encoders), *settings(model, forms)])
    return sources.file(_DOCSTRING, f"{constants}\n\n\n{_class(model, sources)}")


_DOCSTRING = f'''"""A model that onnxruntime runs, written by big_retrieval {__version__}.

    model = OnnxModel("FOLDER")  # this file's

Needs onnxruntime, tokenizers, pillow and numpy. README.md shows its use.
"""'''


def _constants(encoders: Sequence[OnnxEncoder]) -> str:
    """Which file encodes a field, and the types of arrays."""
    files = [f"{literal(each.part.name)}: {literal(each.file)}" for each in encoders]
    arrays = {name: kind for each in encoders for name, kind, _ in each.arrays}
    types = [f"{literal(n)}: {literal(k)}" for n, k in arrays.items() if k != "float32"]
    return "\n".join(
        [
            "# The file of every field's encoder.",
            call("ENCODERS = ", files, ends="{}"),
            "# Types of the arrays that encoders read, where they are not float32.",
            call("TYPES = ", types, ends="{}"),
        ]
    )


def _class(model: Exported, sources: SourceFiles) -> str:
    """The class OnnxModel: the template's, with the readers of that of the target `torch`."""
    template, other = (sources.definitions.pop(name) for name in ("OnnxModel", "RetrievalModel"))
    for constant in ("ENCODERS", "TYPES", *(name for name, _ in READERS.values())):
        sources.definitions.pop(constant)
    modalities = {part.field.modality: part.name for part in reversed(model.encodings)}
    own = template.text.replace("    tokenizer: Any\n\n", "")
    if "text" in modalities:
        end, file = "        self.sessions: dict[str, Any] = {}\n", 'self.folder / "tokenizer.json"'
        made = construction("self.tokenizer = ", tokenizer_form(model), sources, (file,))
        own = own.replace(end, f"{end}{made}\n")
    found = [own]
    for kind in (kind for kind in READERS if kind in modalities):
        reader = methods(other.node, other.text)[READERS[kind][1]]
        for old, new in (
            ("torch.cat", "np.concatenate"),
            ("torch.Tensor", "np.ndarray"),
            ("field: str,", f'field: str = "{modalities[kind]}",'),
        ):
            reader = reader.replace(old, new)
        found.append(reader)
    return "\n\n".join(found)
