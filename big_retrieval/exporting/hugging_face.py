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

_TEXTS = 'tokenizer(["a text"], padding=True, truncation=True, return_tensors="pt")'
_IMAGES = 'processor(images, return_tensors="pt")'
_READERS = {  # modality -> class, name of its instance
    "text": ("AutoTokenizer", "tokenizer"),
    "image": ("AutoImageProcessor", "processor"),
}
_SCORES = f"""\
texts = {_TEXTS}
scores = model(**texts, **{_IMAGES}).logits_per_image"""
_LEXICAL = """\
logits = model(**batch).logits.masked_fill(batch["attention_mask"][:, :, None] == 0, float("-inf"))
embeddings = logits.amax(1).relu().log1p()"""
_USAGE = {  # class -> lines that embed `batch`; for CLIPModel, lines that score
    "BertModel": "positions = model(**batch).last_hidden_state",
    "BertForMaskedLM": _LEXICAL,
    "ViTModel": "embeddings = model(**batch).last_hidden_state[:, 0]",
    "ResNetModel": "embeddings = model(**batch).pooler_output.flatten(1)",
    "CLIPVisionModelWithProjection": "embeddings = model(**batch).image_embeds",
    "CLIPTextModelWithProjection": "embeddings = model(**batch).text_embeds",
    "CLIPModel": _SCORES,
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
        for encoding in model.encodings:
            yield from encoding.prefix_problems()

    def write(self, model: Exported, folder: Path) -> None:
        write_form(_form(model), model, folder)

    def computes(self, model: Exported) -> Mapping[str, Any]:
        form = _form(model)
        pool = model.encoding_of("text").pool if form is BERT else ""
        return {**super().computes(model), "architecture": form.name, "pool": pool}

    def usage(self, model: Exported) -> str:
        form = _form(model)
        readers = [_READERS[modality] for modality in model.modalities]
        names = [*(cls for cls, _ in readers), form.name]
        bare = ", add_pooling_layer=False" if form in (BERT, VIT) else ""
        lines = [f"from transformers import {', '.join(names)}", ""]
        lines += [f'{name} = {cls}.from_pretrained("FOLDER")' for cls, name in readers]
        lines.append(f'model = {form.name}.from_pretrained("FOLDER"{bare})')
        if form is not CLIP:
            lines.append(f"batch = {_TEXTS if model.modalities == ['text'] else _IMAGES}")
        lines.append(_USAGE[form.name])
        if form is BERT:
            lines.append(_POOLED[model.encoding_of("text").pool])
        unit = form not in (CLIP, MASKED) and model.normalises()
        return "\n".join(lines) + (_UNIT if unit else "")


def _form(model: Exported) -> Form:
    form = form_of(model)
    assert form is not None
    return form


def form_of(model: Exported) -> Form | None:
    """Returns the architecture for a model's encoders; None if no architecture supports them."""
    if model.modalities == ["image", "text"]:
        return CLIP
    if model.modalities == ["text"]:
        encoding = model.encoding_of("text")
        dense = CLIP_TEXT if getattr(encoding.tower, "causal", False) else BERT
        return MASKED if encoding.head.lexical else dense
    if model.modalities == ["image"]:
        tower = model.encoding_of("image").tower
        vit = CLIP_IMAGE if getattr(tower, "norm_first", False) else VIT
        return RESNET if tower.type == "resnet" else vit
    return None


def several(model: Exported) -> str:
    """Returns the problem of encoders that do not fit into one folder."""
    if len(model.encodings) == 1:
        encoding = model.encodings[0]
        return (
            f"config.fields.{encoding.name}.type {encoding.field.type!r} (only 'image' or 'text')"
        )
    names = "; ".join(", ".join(encoding.fields) for encoding in model.encodings)
    return f"the encoders of {names} in one folder (export one with --field=NAME)"


def write_config(architecture: str, config: Mapping[str, Any], folder: Path) -> None:
    """Writes config.json."""
    keys = {"architectures": [architecture], "dtype": "float32", **config}
    save_json(folder / "config.json", keys)


def write_form(form: Form, model: Exported, folder: Path) -> None:
    """Writes config.json, the weights, the tokenizer and the preprocessing of images."""
    write_config(form.name, form.config(model), folder)
    save_arrays(folder / "model.safetensors", form.arrays(model))
    for encoding in model.encodings:
        if encoding.field.modality == "text":
            types = form in (BERT, MASKED)
            write_tokenizer(model, folder, encoding.field.length, token_types=types)
        else:
            write_preprocessor(encoding.field, folder)
