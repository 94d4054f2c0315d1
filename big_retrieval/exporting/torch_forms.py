"""PyTorch forms of config parts for `--to=torch`: the module that replaces a part.

`torch_form` has a function per class of towers, heads, fields and topologies. A user-defined part
registers its function in the file that defines it:

    @torch_form.register
    def _(tower: MyTower, context: TorchContext) -> TorchForm:
        return TorchForm("MyTowerInTorch", {"width": tower.width}, file=FILE)
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from big_retrieval import config, similarity
from big_retrieval.config.registry import Part

# Methods that define a computation: a class that overrides one of them needs a form.
WORK = {"build", "project", "score", "paired", "combine"}


@dataclass(frozen=True)
class TorchContext:
    """Information about the model around a part."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of parameters, by path
    # For a head: word table of its tower, such as `text.token_embedding`, with its shape.
    table: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    terms: Any = None  # of a lexical head


@dataclass(frozen=True)
class TorchForm:
    """PyTorch module, or function, that replaces a part, and its arguments.

    Attributes:
      name: a class of big_retrieval/exporting/pytorch or of `file`, such as "VisionTransformer",
        whose constructor takes keywords. For a field, a function that maps its arrays to the
        arguments of the tower, such as "normalised"; empty to pass the arrays.
      arguments: keyword -> number, string, tuple or None, of the class or the field's function.
      call: Python expressions, the arguments of the module. A head can use `tokens` (the tower's
        vectors), arrays of the field by name (`mask=mask` is dropped if the field has no mask),
        `{field}` (its name) and `self` (the model). For a field, names of its arrays.
      buffers: name -> integers, in addition to the module's parameters.
      reads: keywords of `Tokenizer` or `read_image`, for a text or image field.
      fixed_length: True if `torch.export` (for `--to=onnx`) can only trace the tower or head for
        texts of one length.
      file: a user's Python file with the class; empty for the package.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    call: tuple[str, ...] = ()
    buffers: Mapping[str, Any] = field(default_factory=dict)
    reads: Mapping[str, Any] = field(default_factory=dict)
    fixed_length: bool = False
    file: str = ""


@functools.singledispatch
def torch_form(part: Part, context: TorchContext) -> TorchForm:
    """Returns the form of a part for which `has_torch_form` is True."""
    raise NotImplementedError(f"no PyTorch form of {type(part).__name__}")


def has_torch_form(part: Part) -> bool:
    """Returns True if a form is registered for the class that defines the part's computation.

    A form of a subclass of that class also counts.
    """
    for cls in type(part).__mro__:
        if cls in torch_form.registry:
            return cls is not object
        if WORK & vars(cls).keys():
            return False
    return False


def keys(part: Any, *names: str) -> dict[str, Any]:
    """Returns keys of a part with their values."""
    return {name: getattr(part, name) for name in names}


@torch_form.register
def _(head: config.Projection, context: TorchContext) -> TorchForm:
    width, _ = context.shapes.get("kernel", (None, None))
    arguments = {"width": width, **keys(head, "dim", "spheres", "pool")}
    pooled = ("mask",) if head.pool == "mean" else ()
    return TorchForm("ProjectionHead", arguments, call=("tokens", *pooled))


@torch_form.register
def _(head: config.Lexical, context: TorchContext) -> TorchForm:
    terms = context.terms
    tables = context.table if head.tied else {"": context.shapes["kernel"]}
    table, (rows, width) = next(iter(tables.items()))
    same = keys(
        head, "tied", "transform", "layer_norm", "epsilon", "use_bias", "activation", "pooling",
        "pooling_top_k", "pool_padding", "normalise", "top_k",
    )  # fmt: skip
    arguments = {"width": width, "terms": len(terms), **same}
    call, buffers = ["tokens", "mask=mask"], {}
    if head.tied:
        call.append(f"table=self.{table}")
    if head.tied and len(terms) < rows:
        buffers["rows"], arguments["some_rows"] = np.asarray(terms.ids), True
    if head.top_k is not None and head.keep_input_terms:
        buffers["term_of"], arguments["words"] = terms.table, len(terms.table)
        call.append("ids=ids")
    fixed = head.pooling_top_k is not None  # tracing fixes min(K, positions)
    return TorchForm("LexicalHead", arguments, tuple(call), buffers, fixed_length=fixed)


@torch_form.register
def _(head: config.Mlp, context: TorchContext) -> TorchForm:
    width, hidden = context.shapes["fc1/kernel"]
    same = keys(head, "dim", "activation", "batch_norm")
    return TorchForm("MlpHead", {"width": width, "hidden": hidden} | same, call=("tokens",))


@torch_form.register
def _(head: config.SharedTransformer, context: TorchContext) -> TorchForm:
    end, shapes = "_projection/kernel", context.shapes.items()
    widths = {path.removesuffix(end): shape[0] for path, shape in shapes if path.endswith(end)}
    same = keys(head, "dim", "depth", "heads", "mlp", "activation", "epsilon")
    call = ("tokens", "mask=mask", 'field="{field}"')
    return TorchForm("SharedTransformerHead", {"widths": widths} | same, call=call)


@torch_form.register
def _(tower: config.ViT, context: TorchContext) -> TorchForm:
    sizes = {"positions": context.shapes["position_embedding"][0]}
    same = keys(tower, *tower.computed_by, "class_tokens", "tokens_as_one")
    return TorchForm("VisionTransformer", sizes | same)


@torch_form.register
def _(tower: config.Bert, context: TorchContext) -> TorchForm:
    names = {"vocab_size": "token_embedding", "positions": "position_embedding"}
    sizes = {key: context.shapes[table][0] for key, table in names.items()}
    same = keys(tower, *tower.computed_by, "class_tokens", "tokens_as_one", "pool")
    return TorchForm("TextTransformer", sizes | same)


@torch_form.register
def _(tower: config.ResNet, context: TorchContext) -> TorchForm:
    return TorchForm("ResidualNetwork", keys(tower, *tower.computed_by))


@torch_form.register
def _(tower: config.Gru, context: TorchContext) -> TorchForm:
    sizes = {"vocab_size": context.shapes[tower.table][0]}
    arguments = sizes | keys(tower, *tower.computed_by)
    return TorchForm("RecurrentText", arguments, fixed_length=True)


@torch_form.register
def _(tower: config.RegionGraph, context: TorchContext) -> TorchForm:
    sizes = {"dim": context.shapes["fc/kernel"][0]}
    return TorchForm("RegionGraphNetwork", sizes | keys(tower, *tower.computed_by))


@torch_form.register
def _(tower: config.RegionTransformer, context: TorchContext) -> TorchForm:
    sizes = {"dim": context.shapes["fc1/kernel"][0] - 5}  # minus a box and its area
    return TorchForm("RegionTransformerNetwork", sizes | keys(tower, *tower.computed_by))


@torch_form.register
def _(field: config.TextField, context: TorchContext) -> TorchForm:
    fill = getattr(field.head, "pool_padding", False)
    reads = {**keys(field, "length", "prefix"), "fill": fill}
    return TorchForm("", call=("ids", "mask"), reads=reads)


@torch_form.register
def _(field: config.ImageField, context: TorchContext) -> TorchForm:
    reads = {"size": field.size, "resize": field.eval_resize}
    names = {"eval_squash": "squash", "interpolation": "interpolation", "eval_margin": "margin"}
    default = config.ImageField()
    for key, name in names.items():
        if getattr(field, key) != getattr(default, key):
            reads[name] = getattr(field, key)
    return TorchForm("normalised", keys(field, "mean", "std"), call=("pixels",), reads=reads)


@torch_form.register
def _(field: config.RegionField, context: TorchContext) -> TorchForm:
    return TorchForm("", call=("features", "boxes"))


@torch_form.register
def _(field: config.ArrayField, context: TorchContext) -> TorchForm:
    return TorchForm("", call=("values",))


_TOPOLOGIES: dict[Any, str] = {
    similarity.Sphere: "SphereInnerProduct",
    similarity.Euclidean: "EuclideanDistance",
    similarity.Inner: "InnerProduct",
    similarity.Oblique: "ObliqueInnerProduct",
    similarity.Geodesic: "ObliqueGeodesic",
}
for _topology, _name in _TOPOLOGIES.items():
    torch_form.register(_topology, lambda part, context, name=_name: TorchForm(name))
