"""Computes embeddings with another library, in a process that has it and nothing of ours.

    python theirs.py JOBS

JOBS is a JSON file, a list of {"folder", "request", "inputs", "outputs"}: an export, how embeddings
come out of the model, and two .npz files with an array for each field: texts, or images uint8
[n, S, S, 3]; and embeddings float32 [n, N]. A request with "inside" wants no embeddings, but by
layer what the model's layers give, [n, P, W]. Beside `outputs`, <outputs>.json says which versions
were imported, or what the problem was, and whether the environment caused it ("missing").
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import platform
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

POSITIONS = 2  # of a layer's output
# A library's model, and how it encodes: (field, its inputs) -> embeddings [n, N], a tensor.
Opened = tuple[Any, Callable[[str, Any], Any]]


class Missing(Exception):
    """A library cannot be imported, or does not work."""


def main() -> None:
    """Does all jobs, whatever becomes of each."""
    with open(sys.argv[1], encoding="utf-8") as file:
        jobs = json.load(file)
    for job in jobs:
        try:
            told: dict[str, Any] = {"versions": work(**job)}
        except Missing as problem:
            told = {"problem": str(problem), "missing": True}
        except Exception as problem:  # of the library, of any kind
            told = {"problem": named(problem), "missing": raised_by_import(problem)}
        with open(job["outputs"] + ".json", "w", encoding="utf-8") as file:
            json.dump(told, file)


def work(folder: str, request: Any, inputs: str, outputs: str) -> dict[str, str]:
    """Computes and writes the embeddings of an export; gives the versions of what was used."""
    with np.load(inputs, allow_pickle=False) as file:
        given = {name: file[name] for name in file.files}
    open_model = {
        "transformers": with_transformers,
        "sentence-transformers": with_sentence_transformers,
        "open_clip": with_open_clip,
        "torch": with_torch,
        "onnx": with_onnx,
        "onnx files": write_onnx_files,
    }[request["to"]]
    if request["to"] != "onnx":
        pytorch().set_grad_enabled(False)
    model, encode = open_model(folder, request)
    found: dict[str, Any] = {}
    for field, values in by_field(given).items():
        if request.get("inside"):
            with watched(model, request["layers"][field]) as seen:
                for one in one_by_one(values):  # which keeps their order
                    encode(field, one)
            found |= {name: np.concatenate(parts) for name, parts in seen.items()}
        else:
            found[field] = np.asarray(encode(field, values), np.float32)
    np.savez(outputs, **found)
    used = {name: version(name) for name in request["packages"]}
    return {"python": platform.python_version(), **used}


def by_field(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Inputs by field: an array, or by name those whose keys are FIELD/NAME."""
    found: dict[str, Any] = {}
    for key, values in arrays.items():
        field, _, name = key.partition("/")
        if name:
            found.setdefault(field, {})[name] = values
        else:
            found[field] = values
    return found


def one_by_one(values: Any) -> Iterator[Any]:
    """Yields inputs of a field that are one row each."""
    if isinstance(values, dict):
        for row in range(len(next(iter(values.values())))):
            yield {name: x[row : row + 1] for name, x in values.items()}
    else:
        yield from (values[row : row + 1] for row in range(len(values)))


@contextlib.contextmanager
def watched(model: Any, layers: Any) -> Iterator[dict[str, list[np.ndarray]]]:
    """A context that collects, by layer, what a model's layers give for one input after another.

    Args:
      model: a PyTorch module.
      layers: our layers with the paths of modules; the input of the first is called "embedding".
    """
    seen: dict[str, list[np.ndarray]] = {}
    modules, hooks = dict(model.named_modules()), []

    def collect(layer: str, x: Any) -> None:
        seen.setdefault(layer, []).append(reduced(x))

    for number, (layer, path) in enumerate(layers):
        ends = (name for name in modules if name.endswith(f".{path}"))
        module = modules.get(path if path in modules else next(ends, None))
        if module is None:  # of another version
            continue
        hooks.append(module.register_forward_hook(lambda _, __, x, layer=layer: collect(layer, x)))
        if number == 0:
            hooks.append(
                module.register_forward_pre_hook(
                    lambda _, args, more: collect("embedding", [*args, *more.values()]),
                    with_kwargs=True,
                )
            )
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def reduced(x: Any) -> np.ndarray:
    """Some vectors [1, P, W] of what a layer gives for one input, whatever its axes are."""
    x = np.asarray(x[0] if isinstance(x, tuple | list) else x, np.float32)
    if x.ndim == 4:  # channels first
        return x.mean((2, 3))[:, None]
    if x.ndim == 3 and x.shape[0] != 1:  # positions first
        x = x.swapaxes(0, 1)
    return x.reshape(1, -1, x.shape[-1])[:, :POSITIONS]


def library(name: str, attribute: str = "") -> Any:
    """Returns a library, or one of its attributes, which many libraries import when it is read.

    Raises:
      Missing: importing raises any exception, or the installed version lacks the attribute.
    """
    try:
        module = importlib.import_module(name)
        return getattr(module, attribute) if attribute else module
    except Exception as problem:
        raise Missing(named(problem)) from problem


def pytorch() -> Any:
    """Returns torch.

    Raises:
      Missing: it cannot be imported, or was built for another version of numpy.
    """
    torch = library("torch")
    try:
        torch.zeros(1).numpy()
    except Exception as problem:
        raise Missing(named(problem)) from problem
    return torch


def named(problem: BaseException) -> str:
    """Returns the type and the message of an exception, or of its first cause."""
    while problem.__cause__ is not None:  # transformers names only the class that it imported
        problem = problem.__cause__
    return f"{type(problem).__name__}: {problem}"


def raised_by_import(problem: BaseException | None) -> bool:
    """Returns True if an exception, or a cause of it, was raised while importing a module."""
    while problem is not None:
        frames = traceback.walk_tb(problem.__traceback__)  # from `main` on
        if isinstance(problem, ImportError) or any(
            frame.f_code.co_name == "<module>" for frame, _ in frames
        ):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def version(name: str) -> str:
    """Of a distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def unit(x: Any, normalise: bool) -> Any:
    """Vectors divided by their norm, if that is wanted."""
    return x / x.norm(dim=-1, keepdim=True) if normalise else x


def with_transformers(folder: str, request: Any) -> Opened:
    """Opens a folder with transformers' classes."""
    name = request["architecture"]
    bare = {"add_pooling_layer": False} if name in ("BertModel", "ViTModel") else {}
    model = library("transformers", name).from_pretrained(folder, **bare).eval()

    def encode(field: str, values: np.ndarray) -> Any:
        if values.dtype.kind == "U":
            tokenizer = library("transformers", "AutoTokenizer").from_pretrained(folder)
            texts = [str(text) for text in values]
            batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
            found = encode_texts(model, name, request, batch)
        else:
            processor = library("transformers", "AutoImageProcessor").from_pretrained(folder)
            batch = processor(list(values), return_tensors="pt")
            found = encode_images(model, name, batch)
        lexical = name == "BertForMaskedLM"
        return unit(found, request["normalise"] and not lexical)

    return model, encode


def encode_texts(model: Any, name: str, request: Any, batch: Any) -> Any:
    """Embeddings [n, N] of tokenized texts."""
    mask = batch["attention_mask"][:, :, None]
    if name == "BertForMaskedLM":
        logits = model(**batch).logits.masked_fill(mask == 0, float("-inf"))
        return logits.amax(1).relu().log1p()
    if name == "CLIPModel":
        return features(model.get_text_features(**batch))
    if name == "CLIPTextModelWithProjection":
        return model(**batch).text_embeds
    positions = model(**batch).last_hidden_state
    if request["pool"] == "mean":
        return (positions * mask).sum(1) / mask.sum(1)
    return positions[:, 0]


def encode_images(model: Any, name: str, batch: Any) -> Any:
    """Embeddings [n, N] of prepared images."""
    if name == "CLIPModel":
        return features(model.get_image_features(**batch))
    out = model(**batch)
    if name == "CLIPVisionModelWithProjection":
        return out.image_embeds
    return out.pooler_output.flatten(1) if name == "ResNetModel" else out.last_hidden_state[:, 0]


def features(out: Any) -> Any:
    """The projected vectors, which newer versions of transformers wrap."""
    return getattr(out, "pooler_output", out)


def with_sentence_transformers(folder: str, request: Any) -> Opened:
    """Opens a folder with sentence-transformers."""
    name = "SparseEncoder" if request["sparse"] else "SentenceTransformer"
    own = {"trust_remote_code": True} if request.get("own") else {}
    model = library("sentence_transformers", name)(folder, device="cpu", **own)

    def encode(field: str, values: np.ndarray) -> Any:
        prompt = request["prompts"].get(field, "")
        found = model.encode([str(text) for text in values], prompt=prompt, convert_to_tensor=True)
        return found.to_dense() if request["sparse"] else found

    return model, encode


def with_open_clip(folder: str, request: Any) -> Opened:
    """Opens a folder with open_clip."""
    open_clip, torch, pictures = library("open_clip"), library("torch"), library("PIL.Image")
    place = f"local-dir:{folder}"
    model, _, preprocess = open_clip.create_model_and_transforms(place)
    model.eval()

    def encode(field: str, values: np.ndarray) -> Any:
        if values.dtype.kind == "U":
            tokens = open_clip.get_tokenizer(place)([str(text) for text in values])
            return model.encode_text(tokens, normalize=request["normalise"])
        pixels = torch.stack([preprocess(pictures.fromarray(image)) for image in values])
        return model.encode_image(pixels, normalize=request["normalise"])

    return model, encode


def with_torch(folder: str, request: Any) -> Opened:
    """Opens a folder by its own module."""
    library("torch")
    return with_own(program(folder, "model").RetrievalModel.load(folder), request)


def with_onnx(folder: str, request: Any) -> Opened:
    """Opens a folder of ONNX files."""
    library("onnxruntime")
    return with_own(program(folder, "encode").OnnxModel(folder), request)


def program(folder: str, name: str) -> Any:
    """A Python file of a folder, imported."""
    place: Any = importlib.util.spec_from_file_location(name, f"{folder}/{name}.py")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


def with_own(model: Any, request: Any) -> Opened:
    """A model that a Python file of an export defines; all class tokens of an input are one row."""

    def encode(field: str, values: Any) -> Any:
        modality = request["modalities"][field]
        if modality == "text":
            found = model.encode_texts([str(text) for text in values], field)
        elif modality == "image":
            found = model.encode_images(list(values), field)
        else:
            found = model.encode(field, **values)
        return found.reshape(len(found), -1)

    return model, encode


def write_onnx_files(folder: str, request: Any) -> Opened:
    """Writes methods of the folder's PyTorch module as ONNX files, which encodes nothing.

    `request["graphs"]` lists {"file", "method", "sizes", "arrays"}: the arrays are a list of (name,
    type, shape), where a string in the shape is an axis that may have any size, and "sizes" says
    what it has while the method is traced.
    """
    torch = library("torch")
    for name in request["packages"]:
        library(name)
    model = program(folder, "model").RetrievalModel.load(folder)

    class Method(torch.nn.Module):
        """A method of the model, as a module."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.model, self.name = model, name

        def forward(self, *arrays: Any) -> Any:
            return getattr(self.model, self.name)(*arrays)

    for graph in request["graphs"]:
        examples, axes = [], []
        names = [name for name, _, _ in graph["arrays"]]
        for _, kind, shape in graph["arrays"]:
            sizes = [graph["sizes"].get(size, size) for size in shape]
            examples.append(torch.ones(sizes, dtype=getattr(torch, kind)))
            axes.append({n: size for n, size in enumerate(shape) if isinstance(size, str)})
        free = tuple(dict.fromkeys(each, torch.export.Dim.DYNAMIC) for each in axes)
        method, given = Method(graph["method"]), tuple(examples)
        traced = torch.export.export(method, given, dynamic_shapes={"arrays": free})
        written = torch.onnx.export(
            traced, dynamo=True, input_names=names, output_names=["embeddings"],
            dynamic_shapes=axes, verbose=False,
        )  # fmt: skip
        written.save(f"{folder}/{graph['file']}")
    return with_own(model, request)


if __name__ == "__main__":
    main()
