"""The model card of an export: README.md with front matter for model hubs."""

import json
from pathlib import Path
from typing import Any

from big_retrieval import __version__
from big_retrieval.config import schema
from big_retrieval.config.topologies import topology_part
from big_retrieval.exporting.parts import Encoding, Exported
from big_retrieval.exporting.target import ExportTarget, ends
from big_retrieval.io.manifest import read_meta, run_folder

_TASKS = {  # modalities -> task of model hubs
    ("text",): "feature-extraction",
    ("image",): "image-feature-extraction",
    ("image", "text"): "zero-shot-image-classification",
}
SHOWN = 40  # maximum number of metrics


def write_card(model: Exported, target: ExportTarget, license: str, folder: Path) -> None:
    """Writes README.md."""
    task = _TASKS.get(tuple(model.modalities), "feature-extraction")
    tags = "".join(f"\n- {tag}" for tag in ("big_retrieval", *target.tags))
    front = f"library_name: {target.name}\nlicense: {license}\npipeline_tag: {task}\ntags:{tags}"
    parts = [
        f"---\n{front}\n---",
        f"# {run_folder(model.model.folder).name}",
        f"Exported by big_retrieval {__version__} for {target.name}.",
        "## Use",
        f"```python\n{target.usage(model)}\n```",
        "`FOLDER` is this folder. " + _scores(model),
        *_notes(model, target),
        "## Model",
        "\n".join(_encoders(model)),
        *_run(model),
        "## Certificate",
        "`certificate.json` records whether the library gave the embeddings of the trained model "
        "on 16 inputs of every field, and the largest difference.",
    ]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


_COMPARED = {  # topology -> comparison of embeddings
    "sphere": "their cosine",
    "oblique": "the sum of the cosines of their class tokens",
    "geodesic": "the negative geodesic distance of their class tokens",
    "euclidean": "their negative distance",
    "inner": "their inner product",
}


def _scores(model: Exported) -> str:
    heads = [encoding.head for encoding in model.encodings]
    tokens = {_shape(model, encoding)[0] for encoding in model.encodings}
    topology = topology_part(model.config.topology).type
    if all(head.lexical for head in heads):
        topology = "inner"
    elif topology == "oblique" and tokens == {1}:
        topology = "sphere"
    return f"Embeddings are compared by {_COMPARED.get(topology, f'the topology `{topology}`')}."


def _shape(model: Exported, encoding: Encoding) -> tuple[int, int]:
    """Returns M and N of an encoder's embeddings."""
    return encoding.head.embedding_shape(model.config, encoding.name, model.tokenizer.vocab_size)


def _notes(model: Exported, target: ExportTarget) -> list[str]:
    """Returns notes about steps that the library does not do."""
    notes = []
    for encoding in model.encodings:
        for name, prefix in encoding.prompts().items():
            notes.append(f"Texts of the field `{name}` begin with `{prefix}`, the saved prompt.")
        for name, field in encoding.fields.items():
            if getattr(field, "title", ""):
                end = model.tokenizer.id_to_token(ends(model)[1])
                notes.append(f"A text of the field `{name}` with a title: `title {end} text`.")
    if model.tokenizer.clean and "text" in model.modalities and target.name != "open_clip":
        notes.append(
            "In training, texts were cleaned before they were tokenized (ftfy, HTML entities), "
            "which transformers' tokenizers do not do."
        )
    return notes


def _encoders(model: Exported) -> list[str]:
    lines = ["| fields | tower | embedding |", "| --- | --- | --- |"]
    for encoding in model.encodings:
        tokens, size = _shape(model, encoding)
        dims = f"{size} terms" if encoding.head.lexical else f"{size} dimensions"
        dims = dims if tokens == 1 else f"{tokens} class tokens of {dims}"
        lines.append(f"| {', '.join(encoding.fields)} | {encoding.tower.describe()} | {dims} |")
    return lines


def _run(model: Exported) -> list[str]:
    """Returns sections with data and metrics of a run, or with the origin of imported weights."""
    folder = model.model.folder
    meta = read_meta(folder) if (folder / "meta.json").is_file() else {"origin": str(folder)}
    if origin := meta.get("origin"):
        return ["## Origin", f"Imported from `{origin}`."]
    return ["## Training data", _data(model), "## Metrics of the run", _metrics(folder, meta)]


def _data(model: Exported) -> str:
    plain: Any = schema.to_plain(model.config.data)
    keys = [key for key in plain if key in ("type", "path", "name", "split") and plain[key]]
    source = ", ".join(f"{key} `{plain[key]}`" for key in keys)
    return f"Source: {source}; batches of {model.config.batch_size:,} rows."


def _metrics(folder: Path, meta: dict[str, Any]) -> str:
    """Returns a table of the step's metrics, without results of other steps."""
    results = _results(folder)
    values = dict(meta.get("metrics", {}))
    if results.get("evaluated_step", results.get("steps")) == meta["step"]:
        values |= results
    metrics = [(k, x) for k, x in sorted(values.items()) if isinstance(x, int | float) and "/" in k]
    rows = [f"| {name} | {value:.6g} |" for name, value in metrics][:SHOWN]
    if not rows:
        return f"The run has no evaluations of these weights (step {meta['step']:,})."
    return "\n".join([f"Step {meta['step']:,}.\n", "| metric | value |", "| --- | --- |", *rows])


def _results(folder: Path) -> dict[str, Any]:
    results = folder.parent.parent / "results.json"
    try:
        return dict(json.loads(results.read_text())) if folder.parent.name == "checkpoints" else {}
    except (OSError, ValueError, TypeError):  # the run continues
        return {}
