"""The target `transformers`: BERT, ViT, ResNet and CLIP of Hugging Face."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from big_retrieval.exporting.clip import CLIP, CLIP_IMAGE, CLIP_TEXT
from big_retrieval.exporting.forms import BERT, MASKED, RESNET, VIT, Form
from big_retrieval.exporting.parts import Exported
from big_retrieval.exporting.target import (
    ExportTarget,
    save_arrays,
    save_json,
    write_preprocessor,
    write_tokenizer,
)

_USAGE = {
    "BertModel": """\
from transformers import AutoTokenizer, BertModel

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = BertModel.from_pretrained("FOLDER", add_pooling_layer=False)
batch = tokenizer(["a text"], padding=True, truncation=True, return_tensors="pt")
positions = model(**batch).last_hidden_state""",
    "BertForMaskedLM": """\
from transformers import AutoTokenizer, BertForMaskedLM

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = BertForMaskedLM.from_pretrained("FOLDER")
batch = tokenizer(["a text"], padding=True, truncation=True, return_tensors="pt")
logits = model(**batch).logits.masked_fill(batch["attention_mask"][:, :, None] == 0, float("-inf"))
embeddings = logits.amax(1).relu().log1p()""",
    "ViTModel": """\
from transformers import AutoImageProcessor, ViTModel

processor = AutoImageProcessor.from_pretrained("FOLDER")
model = ViTModel.from_pretrained("FOLDER", add_pooling_layer=False)
embeddings = model(**processor(images, return_tensors="pt")).last_hidden_state[:, 0]""",
    "ResNetModel": """\
from transformers import AutoImageProcessor, ResNetModel

processor = AutoImageProcessor.from_pretrained("FOLDER")
model = ResNetModel.from_pretrained("FOLDER")
embeddings = model(**processor(images, return_tensors="pt")).pooler_output.flatten(1)""",
    "CLIPVisionModelWithProjection": """\
from transformers import AutoImageProcessor, CLIPVisionModelWithProjection

processor = AutoImageProcessor.from_pretrained("FOLDER")
model = CLIPVisionModelWithProjection.from_pretrained("FOLDER")
embeddings = model(**processor(images, return_tensors="pt")).image_embeds""",
    "CLIPTextModelWithProjection": """\
from transformers import AutoTokenizer, CLIPTextModelWithProjection

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = CLIPTextModelWithProjection.from_pretrained("FOLDER")
batch = tokenizer(["a text"], padding=True, truncation=True, return_tensors="pt")
embeddings = model(**batch).text_embeds""",
    "CLIPModel": """\
from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel

model = CLIPModel.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
processor = AutoImageProcessor.from_pretrained("FOLDER")
texts = tokenizer(["a text"], padding=True, truncation=True, return_tensors="pt")
scores = model(**texts, **processor(images, return_tensors="pt")).logits_per_image""",
}
_POOLED = {
    "first": "embeddings = positions[:, 0]",
    "mean": 'mask = batch["attention_mask"][:, :, None]\n'
    "embeddings = (positions * mask).sum(1) / mask.sum(1)",
}
_UNIT = "\nembeddings = embeddings / embeddings.norm(dim=-1, keepdim=True)"


class Transformers(ExportTarget):
    """Folders of transformers."""

    packages: ClassVar[tuple[str, ...]] = ("transformers", "torch", "tokenizers", "safetensors")
    tags: ClassVar[tuple[str, ...]] = ("transformers",)

    def problems(self, model: Exported) -> Iterator[str]:
        form = form_of(model)
        if form is None:
            yield several(model)
            return
        for problem in form.problems(model):
            yield f"{problem} in a {form.name}"
        for part in model.encodings:
            for name, prefix in part.prompts().items():
                yield f"config.fields.{name}.prefix {prefix!r}"

    def write(self, model: Exported, folder: Path) -> None:
        form = form_of(model)
        assert form is not None
        write_form(form, model, folder)

    def computes(self, model: Exported) -> Mapping[str, Any]:
        form = form_of(model)
        assert form is not None
        pool = model.of("text").pool if form is BERT else ""
        return {**super().computes(model), "architecture": form.name, "pool": pool}

    def usage(self, model: Exported) -> str:
        form = form_of(model)
        assert form is not None
        lines = _USAGE[form.name]
        if form is BERT:
            lines += "\n" + _POOLED[model.of("text").pool]
        if form not in (CLIP, MASKED) and model.normalises():
            lines += _UNIT
        return lines


def form_of(model: Exported) -> Form | None:
    """The architecture for a model's encoders; None: there is none for these together."""
    if model.modalities == ["image", "text"]:
        return CLIP
    if model.modalities == ["text"]:
        part = model.of("text")
        dense = CLIP_TEXT if getattr(part.tower, "causal", False) else BERT
        return MASKED if part.head.lexical else dense
    if model.modalities == ["image"]:
        tower = model.of("image").tower
        vit = CLIP_IMAGE if getattr(tower, "norm_first", False) else VIT
        return RESNET if tower.type == "resnet" else vit
    return None


def several(model: Exported) -> str:
    """The problem of encoders that no folder holds together, or of one that none holds alone."""
    if len(model.encodings) == 1:
        part = model.encodings[0]
        return f"config.fields.{part.name}.type {part.field.type!r} (only 'image' or 'text')"
    names = "; ".join(", ".join(part.fields) for part in model.encodings)
    return f"the encoders of {names} in one folder (export one with --field=NAME)"


def write_form(form: Form, model: Exported, folder: Path) -> None:
    """Writes config.json, the weights, and what texts and images are prepared with."""
    save_json(folder / "config.json", form.whole_config(model))
    save_arrays(folder / "model.safetensors", form.arrays(model))
    for part in model.encodings:
        if part.field.modality == "text":
            types = form in (BERT, MASKED)
            write_tokenizer(model, folder, part.field.length, token_types=types)
        else:
            write_preprocessor(part.field, folder)
