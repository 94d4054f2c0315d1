"""A whole model from a checkpoint of another library: configuration, tokenizer, parameters."""

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flax import traverse_util

from big_retrieval.config import (
    Config,
    Contrastive,
    ImageField,
    LogitScale,
    TextField,
    Tokenizer,
)
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer
from big_retrieval.data.text.tokenizers import load_tokenizer, wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import SPECIALS
from big_retrieval.errors import UserError
from big_retrieval.inference.load import TrainedModel, load, put_together
from big_retrieval.interop import compatibility
from big_retrieval.interop.fit import fit_tower
from big_retrieval.interop.lexical import as_lexical
from big_retrieval.interop.pixels import Pixels
from big_retrieval.interop.read import is_exported, is_run, locate, read
from big_retrieval.interop.source import CheckpointContents, Flat
from big_retrieval.interop.torch_weights import read_folder

log = logging.getLogger(__name__)
LOSS = Contrastive(logit_scale=LogitScale(max=None))  # published models have only a logit scale
DEFAULT_SIZE = 224  # pixels, if neither the arrays nor a settings file give it


def import_model(
    path: str,
    *,
    like: Config | None = None,
    tokenizer: str = "",
    pool: str = "",
    head: str = "",
    batch_size: int = 64,
) -> TrainedModel:
    """Opens a model of another library, or a run of this package.

    Args:
      path: a weight file, a folder of open_clip, Hugging Face, timm or sentence-transformers, a
        run, or a name on the hub.
      like: a config whose fields (names, columns, sides) and evaluators the model takes over.
      tokenizer: file, folder or hub name, if the checkpoint has none.
      pool: "first", "last" or "mean": pooling of texts, if the checkpoint does not give it.
      head: "lexical" turns a masked-language model into a lexical encoder, with max pooling and
        log(1 + relu); empty leaves the masked-language head out.
      batch_size: maximum number of rows per batch; CPUs take fewer of long texts.

    Raises:
      UserError: the path has no usable model, parameters are missing or unknown, or the tokenizer
        does not fit.
    """
    folder, _ = locate(path)
    if folder is not None and (is_run(folder) or is_exported(folder)):
        if tokenizer or pool or head:
            raise UserError(
                f"{path} is a run or an export of big_retrieval with its own settings. Remove "
                "tokenizer, pool and head."
            )
        return _trained_model(folder, like, batch_size)
    source = read(path)
    compatibility.check_unknown(source, ())
    source = _adapt(source, head, pool)
    final_tokenizer = _tokenizer(source, tokenizer)
    config = config_of(source, like, tokenizer)
    for line in _messages(source, config):
        log.info(line)
    weights = traverse_util.unflatten_dict(_params(source, config), sep="/")
    return put_together(Path(source.origin), config, final_tokenizer, weights, batch_size)


def _trained_model(folder: Path, like: Config | None, batch_size: int) -> TrainedModel:
    """Returns a model of this package, with the data and evaluators of another config."""
    if is_run(folder):
        model = load(folder, batch_size=batch_size)
    else:
        tokenizer = FixedLengthTokenizer.load(folder / "tokenizer.json")
        config, weights = read_folder(folder)
        model = put_together(folder, config, tokenizer, weights, batch_size)
    if like is None:
        return model
    keys = {key: getattr(like, key) for key in ("data", "evals", "best_metric", "final_weights")}
    return dataclasses.replace(model, config=dataclasses.replace(model.config, **keys))


def _messages(source: CheckpointContents, config: Config) -> Iterator[str]:
    """Yields messages about an import."""
    for name, part in source.parts.items():
        size = sum(x.size for x in part.params.values())
        yield f"{name}: {part.kind.name}, {part.tower.describe()}, {size:,} parameters"
        if part.lexical is not None:
            yield f"{name}: lexical, {part.lexical.activation} of the largest logit per term"
        elif part.head:
            yield f"{name}: projected to {part.head_config.dim} dimensions"
    if source.unused:
        yield f"not imported: {', '.join(source.unused)}"
    for use, text in source.settings.prompts.items():
        yield f"texts as {use} should begin with {text!r}; add it yourself"
    yield f"scored by the topology {config.topology!r}"


def _adapt(source: CheckpointContents, head: str, pool: str) -> CheckpointContents:
    """Returns the checkpoint with a lexical head or another pooling of texts."""
    if head not in ("", "lexical"):
        raise UserError(f"Unknown head {head!r}. Use lexical, or remove it.")
    if head:
        source = as_lexical(source)
    if not pool:
        return source
    text = source.parts.get("text")
    if text is None or text.lexical is not None or pool not in ("first", "last", "mean"):
        raise UserError(
            f"pool {pool!r} does not fit {source.origin}. It is first, last or mean, and only for "
            "models that read texts, without a lexical head, which reads all positions."
        )
    text = dataclasses.replace(text, tower=dataclasses.replace(text.tower, pool=pool))
    return dataclasses.replace(source, parts=source.parts | {"text": text})


def _tokenizer(source: CheckpointContents, path: str) -> FixedLengthTokenizer:
    """Returns the given tokenizer or the checkpoint's; its ids must fit the word table."""
    if "text" not in source.parts:
        return wordpiece_tokenizer(SPECIALS)  # never used
    path = path or str(source.settings.tokenizer or "")
    if not path:
        raise UserError(
            f"{source.origin} has no tokenizer. Give its file, folder or hub name with --tokenizer "
            "(for CLIP, bpe_simple_vocab_16e6.txt.gz)."
        )
    tokenizer = load_tokenizer("auto", path)
    rows = source.parts["text"].params["token_embedding"].shape[0]
    if tokenizer.vocab_size > rows:
        raise UserError(
            f"The tokenizer {path} has {tokenizer.vocab_size:,} ids, the word table of "
            f"{source.origin} only {rows:,} rows. It belongs to another model."
        )
    compatibility.check_end(source, tokenizer)
    return tokenizer


def config_of(source: CheckpointContents, like: Config | None, tokenizer: str = "") -> Config:
    """Returns the configuration of an imported model.

    Args:
      like: config whose fields, data and evaluators are taken over; None for fields `image` and
        `text`, or two fields that share the only tower.
      tokenizer: path of the tokenizer, if it is not the checkpoint's.
    """
    parts = source.parts.values()
    topology = "inner" if source.settings.normalise is False else "sphere"
    if any(part.tower.class_tokens > 1 for part in parts):
        topology = "oblique"
    if any(part.lexical is not None for part in parts):
        topology = "inner"
    fields = _fields(source, like)
    used = {field.tower for field in fields.values()}
    path = tokenizer or str(source.settings.tokenizer or "")
    return dataclasses.replace(
        like or Config(),
        dtype="float32",
        topology=topology,
        towers={name: part.tower for name, part in source.parts.items() if name in used},
        fields=fields,
        init={},
        tokenizer=Tokenizer(type="auto", path=path),
        losses={"main": LOSS},
    )


def _fields(source: CheckpointContents, like: Config | None) -> dict[str, Any]:
    if like is not None:
        specs = {name: x for name, x in like.encoded.items() if x.modality in source.parts}
    elif len(source.parts) == 2:
        specs = {"image": ImageField(), "text": TextField()}
    else:
        (side,) = source.parts
        field = ImageField(side="query") if side == "image" else TextField(tower="text")
        specs = {side: field, "document": dataclasses.replace(field, side="document")}
    return {name: _field(source, spec) for name, spec in specs.items()}


def _field(source: CheckpointContents, field: Any) -> Any:
    """Returns a field as the checkpoint's tower reads it."""
    part = source.parts[field.modality]
    if field.modality == "image":
        pixels = source.pixels(part) or Pixels()
        keys = {"size": part.image_size or pixels.size or DEFAULT_SIZE, **pixels.field_keys()}
    else:
        longest = part.positions - part.tower.class_tokens + 1
        keys = {
            "length": min(longest, source.settings.length or longest),
            "prefix": source.settings.prefix + field.prefix,
        }
    return dataclasses.replace(field, tower=field.modality, head=part.head_config, **keys)


def _params(source: CheckpointContents, config: Config) -> Flat:
    scale = np.log(LOSS.logit_scale.init) if source.logit_scale is None else source.logit_scale
    params: Flat = {"scalars/main/logit_scale": np.asarray(scale, np.float32)}
    for name, tower in config.towers.items():
        saved = source.parts[name]
        fields = [field for field in config.fields.values() if field.tower == name]
        fitted = fit_tower(tower, saved, fields).params
        params |= {f"{name}/{path}": array for path, array in fitted.items()}
        params |= {f"batch_stats/{name}/{path}": array for path, array in saved.stats.items()}
    for name, field in config.encoded.items():
        head = source.parts[field.modality].head
        params |= {f"{name}_head/{path}": array for path, array in head.items()}
    return params
