"""Computes embeddings with another library, in a process that has it and nothing of ours.

    python theirs.py JOBS

JOBS is a JSON file, a list of {"folder", "request", "inputs", "outputs"}: an export, how embeddings
come out of the model, and two .npz files with an array for each field: texts, or images uint8
[n, S, S, 3]; and embeddings float32 [n, N]. Beside `outputs`, <outputs>.json says which versions
were imported, or what the problem was, and whether that is a missing library.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

Named = Iterator[tuple[str, Any]]  # (field, embeddings [n, N], a tensor)


class Missing(Exception):
    """A library cannot be imported."""


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
            told = {"problem": f"{type(problem).__name__}: {problem}"}
        with open(job["outputs"] + ".json", "w", encoding="utf-8") as file:
            json.dump(told, file)


def work(folder: str, request: Any, inputs: str, outputs: str) -> dict[str, str]:
    """Computes and writes the embeddings of an export; gives distribution -> version."""
    with np.load(inputs, allow_pickle=False) as file:
        given = {name: file[name] for name in file.files}
    compute = {
        "transformers": with_transformers,
        "sentence-transformers": with_sentence_transformers,
        "open_clip": with_open_clip,
        "torch": with_torch,
        "onnx": with_onnx,
        "onnx files": write_onnx_files,
    }[request["to"]]
    if request["to"] != "onnx":
        library("torch").set_grad_enabled(False)
    found: Any = {
        name: np.asarray(each, np.float32) for name, each in compute(folder, request, given)
    }
    np.savez(outputs, **found)
    return {name: version(name) for name in request["packages"]}


def library(name: str) -> Any:
    """A library.

    Raises:
      Missing: it cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise Missing(str(problem)) from problem


def version(name: str) -> str:
    """Of a distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def unit(x: Any, normalise: bool) -> Any:
    """Vectors divided by their norm, if that is wanted."""
    return x / x.norm(dim=-1, keepdim=True) if normalise else x


def with_transformers(folder: str, request: Any, inputs: Any) -> Named:
    """Yields (field, embeddings) of transformers' classes."""
    transformers = library("transformers")
    name = request["architecture"]
    bare = {"add_pooling_layer": False} if name in ("BertModel", "ViTModel") else {}
    model = getattr(transformers, name).from_pretrained(folder, **bare).eval()
    for field, values in inputs.items():
        if values.dtype.kind == "U":
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            texts = [str(text) for text in values]
            batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
            found = encode_texts(model, name, request, batch)
        else:
            processor = transformers.AutoImageProcessor.from_pretrained(folder)
            batch = processor(list(values), return_tensors="pt")
            found = encode_images(model, name, batch)
        lexical = name == "BertForMaskedLM"
        yield field, unit(found, request["normalise"] and not lexical)


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


def with_sentence_transformers(folder: str, request: Any, inputs: Any) -> Named:
    """Yields (field, embeddings) of sentence-transformers."""
    sentence_transformers = library("sentence_transformers")
    name = "SparseEncoder" if request["sparse"] else "SentenceTransformer"
    own = {"trust_remote_code": True} if request.get("own") else {}
    model = getattr(sentence_transformers, name)(folder, device="cpu", **own)
    for field, values in inputs.items():
        prompt = request["prompts"].get(field, "")
        found = model.encode([str(text) for text in values], prompt=prompt, convert_to_tensor=True)
        yield field, found.to_dense() if request["sparse"] else found


def with_open_clip(folder: str, request: Any, inputs: Any) -> Named:
    """Yields (field, embeddings) of open_clip."""
    open_clip, torch, pictures = library("open_clip"), library("torch"), library("PIL.Image")
    place = f"local-dir:{folder}"
    model, _, preprocess = open_clip.create_model_and_transforms(place)
    model.eval()
    for field, values in inputs.items():
        if values.dtype.kind == "U":
            tokens = open_clip.get_tokenizer(place)([str(text) for text in values])
            yield field, model.encode_text(tokens, normalize=request["normalise"])
        else:
            pixels = torch.stack([preprocess(pictures.fromarray(image)) for image in values])
            yield field, model.encode_image(pixels, normalize=request["normalise"])


def with_torch(folder: str, request: Any, inputs: Any) -> Named:
    """Yields (field, embeddings), those of all class tokens in one row, of the folder's module."""
    library("torch")
    model = program(folder, "model").RetrievalModel.load(folder)
    return with_own(model, request, inputs)


def with_onnx(folder: str, request: Any, inputs: Any) -> Named:
    """The same of the folder's ONNX files."""
    library("onnxruntime")
    return with_own(program(folder, "encode").OnnxModel(folder), request, inputs)


def program(folder: str, name: str) -> Any:
    """A Python file of a folder, imported."""
    place: Any = importlib.util.spec_from_file_location(name, f"{folder}/{name}.py")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


def with_own(model: Any, request: Any, inputs: Any) -> Named:
    """Yields (field, embeddings) of a model that a Python file of an export defines."""
    for field, modality in request["modalities"].items():
        if modality == "text":
            found = model.encode_texts([str(text) for text in inputs[field]], field)
        elif modality == "image":
            found = model.encode_images(list(inputs[field]), field)
        else:
            own = (key.partition("/") for key in inputs)
            arrays = {name: inputs[f"{of}/{name}"] for of, _, name in own if of == field}
            found = model.encode(field, **arrays)
        yield field, found.reshape(len(found), -1)


def write_onnx_files(folder: str, request: Any, inputs: Any) -> Named:
    """Writes methods of the folder's PyTorch module as ONNX files; yields nothing.

    `request["graphs"]` lists {"file", "method", "sizes", "arrays"}: the arrays are a list of (name,
    type, shape), where a string in the shape is an axis that may have any size, and "sizes" says
    what it has while the method is traced.
    """
    del inputs
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
    yield from ()


if __name__ == "__main__":
    main()
