"""How a part of the configuration is written in a PyTorch module, for `--to=torch`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TorchContext:
    """What a part may need to know of the model around it.

    Attributes:
      shapes: path of a parameter below the part -> shape; {} of fields and topologies.
      table: of a head, the word table of the tower in front of it, such as `text.token_embedding`,
        with its shape; {}: that has none.
      terms: of a lexical head.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    table: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    terms: Any = None


@dataclass(frozen=True)
class TorchForm:
    """How a part is written.

    Attributes:
      name: a class of big_retrieval/exporting/pytorch, or of `file`, such as "VisionTransformer";
        its constructor takes keywords. Of a field a function of its arrays, such as "normalised",
        for what the tower is called with; "": the arrays themselves.
      arguments: keyword -> a number, string, tuple or None. Those that are the class's defaults are
        not written. Of a field those of its function.
      call: Python expressions, what the module is called with: of a head of `tokens`, the vectors
        from the tower, of the field's arrays by their names (`mask=mask` is left out where the
        field has no mask) and its name as `{field}`, and of the model as `self`. Of a field the
        names of its arrays.
      buffers: name -> whole numbers, of the module beside its parameters.
      reads: of a field of texts or images, keywords of `Tokenizer` or `read_image`.
      fixed_length: of a tower or a head, whether it can be traced (by `torch.export`, for
        `--to=onnx`) for texts of one length only, as a loop over their words can.
      file: the Python file of a user's own that has the class; "": the package has it.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    call: tuple[str, ...] = ()
    buffers: Mapping[str, Any] = field(default_factory=dict)
    reads: Mapping[str, Any] = field(default_factory=dict)
    fixed_length: bool = False
    file: str = ""


def keys(part: Any, *names: str) -> dict[str, Any]:
    """Keys of a part with their values, for a module whose arguments have the same names."""
    return {name: getattr(part, name) for name in names}
