"""The target `sentence-transformers`: text encoders of its own modules, dense or SPLADE.

Other lexical encoders bring their source: model.py of the target `torch`, and
`pytorch/text_encoder.py`, which wraps it as a module of the library.
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from big_retrieval.exporting.forms import BERT, MASKED, bert_config, bert_problems, masked_problems
from big_retrieval.exporting.hugging_face import several, write_form
from big_retrieval.exporting.parts import Exported, unlike
from big_retrieval.exporting.target import ExportTarget, save_arrays, save_json
from big_retrieval.exporting.torch import Torch
from big_retrieval.exporting.torch_module import FOLDER, head_name
from big_retrieval.interop.sentence_transformers import NORM_EPSILON, SPLADE
from big_retrieval.models.towers import lexical_terms

# Names of 5.0, which newer versions read as well.
_MODELS = "sentence_transformers.models"
_SPARSE = "sentence_transformers.sparse_encoder.models"
_TORCH = Torch("torch")
_ACTIVATIONS = {ours: theirs for theirs, ours in SPLADE.items()}


class SentenceTransformers(ExportTarget):
    """Folders of sentence-transformers."""

    packages: ClassVar[tuple[str, ...]] = (
        "sentence-transformers",
        "transformers",
        "torch",
        "tokenizers",
    )
    tags: ClassVar[tuple[str, ...]] = ("sentence-transformers",)

    def problems(self, model: Exported) -> Iterator[str]:
        if len(model.encodings) > 1:
            yield several(model)
        elif model.modalities != ["text"]:
            yield f"an encoder of the modality {model.modalities[0]!r} (only 'text')"
        elif model.of("text").head.lexical:
            yield from unlike("config", model.config, {"topology": "inner"})
            if not _stock(model):
                yield from _TORCH.problems(model)
        else:
            yield from bert_problems(model)
            part = model.of("text")
            if part.tower.final_norm and part.pool != "first":
                yield f"config.towers.{part.tower_name}.final_norm True in front of a mean"
            if part.tower.final_norm:  # which the library's module takes no number for
                wanted = {"epsilon": NORM_EPSILON}
                yield from unlike(f"config.towers.{part.tower_name}", part.tower, wanted)
        sides: dict[str, str] = {}
        for part in model.encodings:
            for name, field in part.fields.items():
                prefix = getattr(field, "prefix", "")
                if sides.setdefault(field.side, prefix) != prefix:
                    yield f"two prefixes of the side {field.side} (export one with --field={name})"

    def write(self, model: Exported, folder: Path) -> None:
        part = model.of("text")
        lexical = part.head.lexical
        if not _stock(model):
            modules = self._write_own(model, folder)
        elif lexical:
            write_form(MASKED, model, folder)
            pooling = "1_SpladePooling"
            modules = [("", f"{_SPARSE}.MLMTransformer"), (pooling, f"{_SPARSE}.SpladePooling")]
            self._write_splade(model, folder / pooling)
        else:
            write_form(BERT, model, folder)
            save_json(folder / "config.json", _encoder_config(model))
            modules = self._write_dense(model, folder)
        save_json(
            folder / "modules.json",
            [
                {"idx": number, "name": str(number), "path": path, "type": kind}
                for number, (path, kind) in enumerate(modules)
            ],
        )
        if _stock(model):
            settings = {"max_seq_length": part.field.length, "do_lower_case": False}
            if not lexical:  # else transformers draws a pooler and warns of it
                settings["model_args"] = {"add_pooling_layer": False}
            save_json(folder / "sentence_bert_config.json", settings)
        library = {
            "model_type": "SparseEncoder" if lexical else "SentenceTransformer",
            "similarity_fn_name": "cosine" if model.normalises() else "dot",
            "prompts": {part.fields[name].side: text for name, text in part.prompts().items()},
            "default_prompt_name": None,
        }
        save_json(folder / "config_sentence_transformers.json", library)

    def _write_own(self, model: Exported, folder: Path) -> list[tuple[str, str]]:
        """Writes an export to PyTorch and the only module, which wraps it."""
        _TORCH.write(model, folder)
        shutil.copy(FOLDER / "text_encoder.py", folder)
        words, owner = model.tokenizer, head_name(model.of("text")).removesuffix("_head")
        terms = lexical_terms(model.config, words.vocab_size, words)[owner]
        (folder / "terms.txt").write_text("\n".join(terms.names(words)), encoding="utf-8")
        return [("", "text_encoder.TextEncoder")]

    def _write_splade(self, model: Exported, folder: Path) -> None:
        part = model.of("text")
        folder.mkdir()
        settings = {
            "pooling_strategy": "max",
            "activation_function": _ACTIVATIONS[part.head.activation],
            "word_embedding_dimension": part.params["token_embedding"].shape[0],
        }
        save_json(folder / "config.json", settings)

    def _write_dense(self, model: Exported, folder: Path) -> list[tuple[str, str]]:
        """Writes the modules after the transformer; returns (folder, class) of all modules."""
        part = model.of("text")
        width = part.tower.width
        modules = [("", f"{_MODELS}.Transformer"), ("1_Pooling", f"{_MODELS}.Pooling")]
        (folder / "1_Pooling").mkdir()
        pooling = {
            "word_embedding_dimension": width,
            "pooling_mode_cls_token": part.pool == "first",
            "pooling_mode_mean_tokens": part.pool == "mean",
            "pooling_mode_max_tokens": False,
            "include_prompt": True,
        }
        save_json(folder / "1_Pooling" / "config.json", pooling)
        if part.tower.final_norm:  # of the first position: its own norm
            place = folder / "2_LayerNorm"
            place.mkdir()
            modules.append((place.name, f"{_MODELS}.LayerNorm"))
            save_json(place / "config.json", {"dimension": width})
            norm = {"weight": "scale", "bias": "bias"}
            arrays = {f"norm.{a}": part.params[f"ln_final/{b}"] for a, b in norm.items()}
            save_arrays(place / "model.safetensors", arrays)
        if part.head_params:
            place = folder / f"{len(modules)}_Dense"
            place.mkdir()
            modules.append((place.name, f"{_MODELS}.Dense"))
            kernel = part.head_params["kernel"]
            dense = {
                "in_features": width,
                "out_features": kernel.shape[1],
                "bias": False,
                "activation_function": "torch.nn.modules.linear.Identity",
            }
            save_json(place / "config.json", dense)
            save_arrays(place / "model.safetensors", {"linear.weight": np.transpose(kernel)})
        if model.normalises():
            place = folder / f"{len(modules)}_Normalize"
            place.mkdir()
            modules.append((place.name, f"{_MODELS}.Normalize"))
        return modules

    def computes(self, model: Exported) -> Mapping[str, Any]:
        part = model.of("text")
        own = not _stock(model)
        return {"sparse": part.head.lexical, "prompts": part.prompts(), "own": own}

    def usage(self, model: Exported) -> str:
        name = "SparseEncoder" if model.of("text").head.lexical else "SentenceTransformer"
        own = not _stock(model)
        trust = ", trust_remote_code=True" if own else ""
        comment = "  # runs text_encoder.py and model.py" if own else ""
        return f"""\
from sentence_transformers import {name}

model = {name}("FOLDER"{trust}){comment}
queries, documents = model.encode_query(["a text"]), model.encode_document(["another text"])
scores = model.similarity(queries, documents)"""


def _encoder_config(model: Exported) -> dict[str, Any]:
    """Returns config.json of the transformer; the modules after it have the rest."""
    return {"architectures": [BERT.name], "dtype": "float32", **bert_config(model)}


def _stock(model: Exported) -> bool:
    """Returns True if the library's own modules compute the text encoder."""
    lexical = model.of("text").head.lexical
    return not lexical or next(masked_problems(model, tuple(_ACTIVATIONS)), None) is None
