"""The peers of `benchmarks.encode`; their libraries are imported when asked for."""

import argparse
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Encode = Callable[[Sequence[str]], np.ndarray]
SIZE = 224  # pixels of an image that the model reads


def sentence_transformers(args: argparse.Namespace) -> Encode:
    """sentence-transformers with PyTorch; sorts texts by length itself."""
    library: Any = importlib.import_module("sentence_transformers")
    model = library.SentenceTransformer(args.model, device="cpu")
    return lambda texts: model.encode(
        list(texts), batch_size=args.batch, show_progress_bar=False, normalize_embeddings=True
    )


def onnxruntime(args: argparse.Namespace) -> Encode:
    """onnxruntime with a model and the program that `big-retrieval export --to=onnx` writes."""
    library: Any = importlib.import_module("onnxruntime")
    place = importlib.util.spec_from_file_location("exported", Path(args.onnx) / "encode.py")
    assert place is not None
    assert place.loader is not None
    program: Any = importlib.util.module_from_spec(place)
    place.loader.exec_module(program)
    model = program.OnnxModel(args.onnx)
    field = next(iter(program.TEXTS))
    options = library.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    file = program.ENCODERS[field]
    model.sessions[file] = library.InferenceSession(
        Path(args.onnx) / file, options, providers=["CPUExecutionProvider"]
    )

    def encode(texts: Sequence[str]) -> np.ndarray:
        order = np.argsort([len(text) for text in texts], kind="stable")
        found = model.encode_texts([texts[i] for i in order], field, batch_size=args.batch)
        return found.reshape(len(texts), -1)[np.argsort(order)]

    return encode


def transformers(args: argparse.Namespace) -> Encode:
    """transformers' ViTModel, with images read by Pillow in two threads beside it."""
    torch: Any = importlib.import_module("torch")
    library: Any = importlib.import_module("transformers")
    model = library.ViTModel.from_pretrained(f"{args.folder}/vit", add_pooling_layer=False).eval()

    def read(file: str) -> np.ndarray:
        with Image.open(file) as picture:
            whole = picture.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        return np.asarray(whole, np.float32) / 127.5 - 1

    def encode(files: Sequence[str]) -> np.ndarray:
        found = []
        with ThreadPoolExecutor(2) as threads, torch.inference_mode():
            pictures = threads.map(read, files)
            for start in range(0, len(files), args.batch):
                some = [next(pictures) for _ in files[start : start + args.batch]]
                pixels = torch.from_numpy(np.stack(some)).permute(0, 3, 1, 2)
                states = model(pixels.contiguous()).last_hidden_state[:, 0]
                found.append(torch.nn.functional.normalize(states, dim=-1).numpy())
        return np.concatenate(found)

    return encode


def write_vit(folder: Path) -> None:
    """A ViTModel of the size of ViT-B/32 with random weights, as transformers saves it."""
    torch: Any = importlib.import_module("torch")
    library: Any = importlib.import_module("transformers")
    torch.manual_seed(0)
    config = library.ViTConfig(patch_size=32, image_size=SIZE)
    library.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    library.ViTImageProcessor().save_pretrained(folder)


PEERS: dict[str, Callable[[argparse.Namespace], Encode]] = {
    "sentence-transformers": sentence_transformers,
    "onnxruntime": onnxruntime,
    "transformers": transformers,
}
