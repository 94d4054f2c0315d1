"""Computes embeddings with another library, in a process that has only this file and the library.

    python reference_encoder.py JOBS

JOBS is a JSON list of {"folder", "request", "inputs", "outputs"}. `folder` is an export, `request`
the settings of its target. `inputs` and `outputs` are .npz files with an array per field: texts or
images uint8 [n, S, S, 3], and embeddings float32 [n, N]. <outputs>.json has the versions of the
libraries, or the problem; "missing" is true if the environment caused it.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import platform
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

Encode = Callable[[str, Any], Any]  # (field, its inputs) -> embeddings [n, N], a tensor


class Missing(Exception):
    """A library cannot be imported, or does not work."""


def main() -> None:
    """Runs all jobs, even if some of them fail."""
    with open(sys.argv[1], encoding="utf-8") as file:
        jobs = json.load(file)
    for job in jobs:
        try:
            answer: dict[str, Any] = {"versions": work(**job)}
        except Missing as error:
            answer = {"problem": str(error), "missing": True}
        except Exception as error:  # any exception of the library
            answer = {"problem": format_error(error), "missing": raised_by_import(error)}
        with open(job["outputs"] + ".json", "w", encoding="utf-8") as file:
            json.dump(answer, file)


def work(folder: str, request: Any, inputs: str, outputs: str) -> dict[str, str]:
    """Writes the embeddings of an export; returns the versions of the libraries."""
    arrays: dict[str, Any] = {}
    with np.load(inputs, allow_pickle=False) as file:
        for key in file.files:
            field, _, name = key.partition("/")
            if name:  # FIELD/NAME: one of several arrays of a field
                arrays.setdefault(field, {})[name] = file[key]
            else:
                arrays[field] = file[key]
    open_model = {
        "transformers": with_transformers,
        "sentence-transformers": with_sentence_transformers,
        "open_clip": with_open_clip,
        "torch": with_program,
        "onnx": with_program,
        "onnx files": write_onnx_files,
    }[request["to"]]
    if request["to"] != "onnx":
        pytorch().set_grad_enabled(False)
    encode = open_model(folder, request)
    embeddings: Any = {
        field: np.asarray(encode(field, values), np.float32) for field, values in arrays.items()
    }
    np.savez(outputs, **embeddings)
    used = {name: version(name) for name in request["packages"]}
    return {"python": platform.python_version(), **used}


def library(name: str, attribute: str = "") -> Any:
    """Returns a library, or an attribute, which many libraries import only on access.

    Raises:
      Missing: importing raises any exception, or the installed version lacks the attribute.
    """
    try:
        module = importlib.import_module(name)
        return getattr(module, attribute) if attribute else module
    except Exception as error:
        raise Missing(format_error(error)) from error


def pytorch() -> Any:
    """Returns torch.

    Raises:
      Missing: torch cannot be imported, or was built for another version of numpy.
    """
    torch = library("torch")
    try:
        torch.zeros(1).numpy()
    except Exception as error:
        raise Missing(format_error(error)) from error
    return torch


def format_error(error: BaseException) -> str:
    """Returns the type and the message of an exception, or of its first cause."""
    while error.__cause__ is not None:  # transformers names only the class that it imported
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


def raised_by_import(error: BaseException | None) -> bool:
    """Returns True if an exception, or a cause of it, was raised while importing a module."""
    while error is not None:
        frames = traceback.walk_tb(error.__traceback__)  # from `main` on
        in_module = any(frame.f_code.co_name == "<module>" for frame, _ in frames)
        if in_module or isinstance(error, ImportError):
            return True
        error = error.__cause__ or error.__context__
    return False


def version(name: str) -> str:
    """Returns the version of a distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def unit(x: Any, normalise: bool) -> Any:
    """Returns vectors, divided by their norm if `normalise` is True."""
    return x / x.norm(dim=-1, keepdim=True) if normalise else x


def with_transformers(folder: str, request: Any) -> Encode:
    """Opens a folder with a class of transformers."""
    name = request["architecture"]
    bare = {"add_pooling_layer": False} if name in ("BertModel", "ViTModel") else {}
    model = library("transformers", name).from_pretrained(folder, **bare).eval()

    def encode(field: str, values: np.ndarray) -> Any:
        if values.dtype.kind == "U":
            tokenizer = library("transformers", "AutoTokenizer").from_pretrained(folder)
            texts = [str(text) for text in values]
            batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
            embeddings = encode_texts(model, name, request, batch)
        else:
            processor = library("transformers", "AutoImageProcessor").from_pretrained(folder)
            batch = processor(list(values), return_tensors="pt")
            embeddings = encode_images(model, name, batch)
        lexical = name == "BertForMaskedLM"
        return unit(embeddings, request["normalise"] and not lexical)

    return encode


def encode_texts(model: Any, name: str, request: Any, batch: Any) -> Any:
    """Returns embeddings [n, N] of tokenized texts."""
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
    """Returns embeddings [n, N] of prepared images."""
    if name == "CLIPModel":
        return features(model.get_image_features(**batch))
    out = model(**batch)
    if name == "CLIPVisionModelWithProjection":
        return out.image_embeds
    return out.pooler_output.flatten(1) if name == "ResNetModel" else out.last_hidden_state[:, 0]


def features(out: Any) -> Any:
    """Returns the projected vectors, which newer versions of transformers wrap."""
    return getattr(out, "pooler_output", out)


def with_sentence_transformers(folder: str, request: Any) -> Encode:
    """Opens a folder with sentence-transformers."""
    name = "SparseEncoder" if request["sparse"] else "SentenceTransformer"
    trust = {"trust_remote_code": True} if request.get("own") else {}
    model = library("sentence_transformers", name)(folder, device="cpu", **trust)

    def encode(field: str, values: np.ndarray) -> Any:
        prompt = request["prompts"].get(field, "")
        texts = [str(text) for text in values]
        embeddings = model.encode(texts, prompt=prompt, convert_to_tensor=True)
        return embeddings.to_dense() if request["sparse"] else embeddings

    return encode


def with_open_clip(folder: str, request: Any) -> Encode:
    """Opens a folder with open_clip."""
    open_clip, torch, pictures = library("open_clip"), library("torch"), library("PIL.Image")
    name = f"local-dir:{folder}"
    model, _, preprocess = open_clip.create_model_and_transforms(name)
    model.eval()

    def encode(field: str, values: np.ndarray) -> Any:
        if values.dtype.kind == "U":
            tokens = open_clip.get_tokenizer(name)([str(text) for text in values])
            return model.encode_text(tokens, normalize=request["normalise"])
        pixels = torch.stack([preprocess(pictures.fromarray(image)) for image in values])
        return model.encode_image(pixels, normalize=request["normalise"])

    return encode


def with_program(folder: str, request: Any) -> Encode:
    """Opens a folder with its model.py or encode.py; class tokens become one row."""
    if request["to"] == "onnx":
        library("onnxruntime")
        model = program(folder, "encode").OnnxModel(folder)
    else:
        model = program(folder, "model").RetrievalModel.load(folder)

    def encode(field: str, values: Any) -> Any:
        modality = request["modalities"][field]
        if modality == "text":
            embeddings = model.encode_texts([str(text) for text in values], field)
        elif modality == "image":
            embeddings = model.encode_images(list(values), field)
        else:
            embeddings = model.encode(field, **values)
        return embeddings.reshape(len(embeddings), -1)

    return encode


def program(folder: str, name: str) -> Any:
    """Imports a Python file of a folder."""
    spec: Any = importlib.util.spec_from_file_location(name, f"{folder}/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_onnx_files(folder: str, request: Any) -> Encode:
    """Writes methods of the folder's PyTorch module as ONNX files.

    `request["graphs"]` lists {"file", "method", "sizes", "arrays"}. The arrays are (name, type,
    shape). A string in a shape is a free axis; "sizes" has its size while tracing.
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
        for _, dtype, shape in graph["arrays"]:
            sizes = [graph["sizes"].get(size, size) for size in shape]
            examples.append(torch.ones(sizes, dtype=getattr(torch, dtype)))
            axes.append({n: size for n, size in enumerate(shape) if isinstance(size, str)})
        free = tuple(dict.fromkeys(x, torch.export.Dim.DYNAMIC) for x in axes)
        method = Method(graph["method"])
        traced = torch.export.export(method, tuple(examples), dynamic_shapes={"arrays": free})
        written = torch.onnx.export(
            traced, dynamo=True, input_names=names, output_names=["embeddings"],
            dynamic_shapes=axes, verbose=False,
        )  # fmt: skip
        written.save(f"{folder}/{graph['file']}")
    return lambda field, values: None  # a request for files has no inputs


if __name__ == "__main__":
    main()
