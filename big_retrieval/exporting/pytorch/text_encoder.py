"""The text encoder of this folder as a module of sentence-transformers.

    SparseEncoder("FOLDER", trust_remote_code=True)

The network itself is in model.py.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

try:
    from sentence_transformers.base.modules import InputModule
except ImportError:  # before 6.0
    from sentence_transformers.models import InputModule

from .model import RetrievalModel

WEIGHTS, TERMS = "model.safetensors", "terms.txt"
CONFIG = "big_retrieval.json"
OTHERS = ("tokenizer.json", CONFIG, TERMS)


class TermNames:
    """Names of terms, for `SparseEncoder.decode`."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def convert_ids_to_tokens(self, terms: Any) -> Any:
        """Returns the name of a term, or a list of names."""
        if isinstance(terms, int):
            return self.names[terms]
        return [self.names[int(term)] for term in terms]


class TextEncoder(InputModule):
    """Texts to lexical embeddings.

    Args:
      model: a model with one text field.
      files: name -> content of the files that are saved with the weights.
    """

    def __init__(self, model: RetrievalModel, files: dict[str, bytes]) -> None:
        super().__init__()
        self.model, self.files = model, files
        ((self.field, reads),) = model.TEXTS.items()
        # The library's prompt replaces the prefix.
        self.reads = {key: value for key, value in reads.items() if key not in ("length", "prefix")}
        self.max_seq_length = reads["length"]
        self.tokenizer: Any = TermNames(files[TERMS].decode().split("\n"))

    @classmethod
    def load(cls, model_name_or_path: str, **options: Any) -> "TextEncoder":
        """Reads a folder, or a model of the hub."""
        keys = ("subfolder", "token", "cache_folder", "revision", "local_files_only")
        options = {key: value for key, value in options.items() if key in keys}
        paths = {
            name: Path(cls.load_file_path(model_name_or_path, filename=name, **options))
            for name in (WEIGHTS, *OTHERS)
        }
        files = {name: paths[name].read_bytes() for name in OTHERS}
        config = json.loads(files[CONFIG])
        config.pop("params_sha256", None)  # training may change the parameters
        files[CONFIG] = json.dumps(config, indent=2).encode()
        return cls(RetrievalModel.load(paths[WEIGHTS].parent), files)

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Writes what `load` reads; the library copies the source files."""
        folder = Path(output_path)
        weights = {name: x.contiguous() for name, x in self.model.state_dict().items()}
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
        for name, content in self.files.items():
            (folder / name).write_bytes(content)

    def preprocess(
        self, inputs: list[str], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, torch.Tensor]:
        """Returns ids and mask [n, L] of texts."""
        texts = [(prompt or "") + text for text in inputs]
        ids, mask = self.model.tokenizer(texts, length=self.max_seq_length, **self.reads)
        return {"input_ids": torch.as_tensor(ids), "attention_mask": torch.as_tensor(mask)}

    def tokenize(self, texts: list[str], **kwargs: Any) -> dict[str, torch.Tensor]:
        """Replaces `preprocess` before 6.0, where the library adds the prompt."""
        return self.preprocess(texts)

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Adds the embeddings [n, V]."""
        embed = getattr(self.model, f"embed_{self.field}")
        mask = features["attention_mask"].bool()
        features["sentence_embedding"] = embed(ids=features["input_ids"], mask=mask)
        return features

    def get_embedding_dimension(self) -> int:
        """Returns V."""
        return len(self.tokenizer.names)

    def get_sentence_embedding_dimension(self) -> int:
        """Replaces `get_embedding_dimension` before 6.0."""
        return self.get_embedding_dimension()
