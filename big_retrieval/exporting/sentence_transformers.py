"""The target `sentence-transformers`: text encoders with its stock modules, dense or SPLADE.

Exports of other lexical encoders contain their source: model.py of the target `torch`, and
`pytorch/text_encoder.py`, which wraps it as a module of the library.
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from big_retrieval.exporting.forms import BERT, MASKED, bert_config, bert_problems, masked_problems
from big_retrieval.exporting.hugging_face import several, write_config, write_form
from big_retrieval.exporting.parts import Exported, unlike
from big_retrieval.exporting.target import ExportTarget, save_arrays, save_json
from big_retrieval.exporting.torch import Torch
from big_retrieval.exporting.torch_module import FOLDER, head_name
from big_retrieval.interop.sentence_transformers import NORM_EPSILON, SPLADE
from big_retrieval.interop.source import Flat
from big_retrieval.models.towers import lexical_terms

# Names of 5.0, which newer versions also read.
_MODELS = "sentence_transformers.models"
_SPARSE = "sentence_transformers.sparse_encoder.models"
_TORCH = Torch("torch")
_ACTIVATIONS = {activation: name for name, activation in SPLADE.items()}


class SentenceTransformers(ExportTarget):
    """Folders of sentence-transformers."""

    packages: ClassVar = ("sentence-transformers", "transformers", "torch", "tokenizers")
    tags: ClassVar[tuple[str, ...]] = ("sentence-transformers",)

    def problems(self, model: Exported) -> Iterator[str]:
        if len(model.encodings) > 1:
            yield several(model)
        elif model.modalities != ["text"]:
            yield f"an encoder of the modality {model.modalities[0]!r} (only 'text')"
        elif model.encoding_of("text").head.lexical:
            yield from unlike("config", model.config, {"topology": "inner"})
            if not _stock(model):
                yield from _TORCH.problems(model)
        else:
            yield from bert_problems(model)
            encoding = model.encoding_of("text")
            path = f"config.towers.{encoding.tower_name}"
            if encoding.tower.final_norm and encoding.pool != "first":
                yield f"{path}.final_norm True before a mean"
            if encoding.tower.final_norm:  # the epsilon of the library's module is fixed
                yield from unlike(path, encoding.tower, {"epsilon": NORM_EPSILON})
        sides: dict[str, str] = {}
        for encoding in model.encodings:
            for name, field in encoding.fields.items():
                prefix = getattr(field, "prefix", "")
                if sides.setdefault(field.side, prefix) != prefix:
                    yield f"two prefixes of the side {field.side} (export one with --field={name})"

    def write(self, model: Exported, folder: Path) -> None:
        encoding = model.encoding_of("text")
        lexical = encoding.head.lexical
        if not _stock(model):
            modules = self._write_source(model, folder)
        elif lexical:
            write_form(MASKED, model, folder)
            pooling = "1_SpladePooling"
            modules = [("", f"{_SPARSE}.MLMTransformer"), (pooling, f"{_SPARSE}.SpladePooling")]
            self._write_splade(model, folder / pooling)
        else:
            write_form(BERT, model, folder)
            write_config(BERT.name, bert_config(model), folder)  # modules have the rest
            modules = self._write_dense(model, folder)
        entries = [
            {"idx": index, "name": str(index), "path": path, "type": module_class}
            for index, (path, module_class) in enumerate(modules)
        ]
        save_json(folder / "modules.json", entries)
        if _stock(model):
            settings = {"max_seq_length": encoding.field.length, "do_lower_case": False}
            if not lexical:  # otherwise transformers warns about a random pooler
                settings["model_args"] = {"add_pooling_layer": False}
            save_json(folder / "sentence_bert_config.json", settings)
        library = {
            "model_type": "SparseEncoder" if lexical else "SentenceTransformer",
            "similarity_fn_name": "cosine" if model.normalises() else "dot",
            "prompts": {
                encoding.fields[name].side: text for name, text in encoding.prompts().items()
            },
            "default_prompt_name": None,
        }
        save_json(folder / "config_sentence_transformers.json", library)

    def _write_source(self, model: Exported, folder: Path) -> list[tuple[str, str]]:
        """Writes an export to PyTorch and the module that wraps it; returns (folder, class)."""
        _TORCH.write(model, folder)
        shutil.copy(FOLDER / "text_encoder.py", folder)
        tokenizer, owner = (
            model.tokenizer,
            head_name(model.encoding_of("text")).removesuffix("_head"),
        )
        terms = lexical_terms(model.config, tokenizer.vocab_size, tokenizer)[owner]
        (folder / "terms.txt").write_text("\n".join(terms.names(tokenizer)), encoding="utf-8")
        return [("", "text_encoder.TextEncoder")]

    def _write_splade(self, model: Exported, folder: Path) -> None:
        encoding = model.encoding_of("text")
        settings = {
            "pooling_strategy": "max",
            "activation_function": _ACTIVATIONS[encoding.head.activation],
            "word_embedding_dimension": encoding.params["token_embedding"].shape[0],
        }
        _write_module(folder, settings)

    def _write_dense(self, model: Exported, folder: Path) -> list[tuple[str, str]]:
        """Writes the modules after the transformer; returns (folder, class) of all modules."""
        encoding = model.encoding_of("text")
        width = encoding.tower.width
        modules = ["", "1_Pooling"]
        pooling = {
            "word_embedding_dimension": width,
            "pooling_mode_cls_token": encoding.pool == "first",
            "pooling_mode_mean_tokens": encoding.pool == "mean",
            "pooling_mode_max_tokens": False,
            "include_prompt": True,
        }
        _write_module(folder / modules[-1], pooling)
        if encoding.tower.final_norm:
            modules.append("2_LayerNorm")
            norm = {"weight": "scale", "bias": "bias"}
            arrays = {f"norm.{a}": encoding.params[f"ln_final/{b}"] for a, b in norm.items()}
            _write_module(folder / modules[-1], {"dimension": width}, arrays)
        if encoding.head_params:
            modules.append(f"{len(modules)}_Dense")
            kernel = encoding.head_params["kernel"]
            dense = {
                "in_features": width,
                "out_features": kernel.shape[1],
                "bias": False,
                "activation_function": "torch.nn.modules.linear.Identity",
            }
            _write_module(folder / modules[-1], dense, {"linear.weight": np.transpose(kernel)})
        if model.normalises():
            modules.append(f"{len(modules)}_Normalize")
            (folder / modules[-1]).mkdir()
        return [(name, f"{_MODELS}.{name[2:] or 'Transformer'}") for name in modules]

    def computes(self, model: Exported) -> Mapping[str, Any]:
        encoding = model.encoding_of("text")
        is_source = not _stock(model)
        return {"sparse": encoding.head.lexical, "prompts": encoding.prompts(), "own": is_source}

    def usage(self, model: Exported) -> str:
        name = "SparseEncoder" if model.encoding_of("text").head.lexical else "SentenceTransformer"
        is_source = not _stock(model)
        trust = ", trust_remote_code=True" if is_source else ""
        comment = "  # runs text_encoder.py and model.py" if is_source else ""
        return f"""\
from sentence_transformers import {name}

model = {name}("FOLDER"{trust}){comment}
queries, documents = model.encode_query(["a text"]), model.encode_document(["another text"])
scores = model.similarity(queries, documents)"""


def _write_module(folder: Path, config: dict[str, Any], arrays: Flat | None = None) -> None:
    folder.mkdir()
    save_json(folder / "config.json", config)
    if arrays:
        save_arrays(folder / "model.safetensors", arrays)


def _stock(model: Exported) -> bool:
    """Returns True if the library's stock modules compute the text encoder."""
    lexical = model.encoding_of("text").head.lexical
    return not lexical or next(masked_problems(model, tuple(_ACTIVATIONS)), None) is None
