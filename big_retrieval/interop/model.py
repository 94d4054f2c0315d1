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
from big_retrieval.data.text.tokenizers import load_tokenizer
from big_retrieval.errors import UserError
from big_retrieval.inference.load import TrainedModel, load, put_together
from big_retrieval.interop import compatibility
from big_retrieval.interop.fit import fit_tower
from big_retrieval.interop.lexical import as_lexical
from big_retrieval.interop.pixels import Pixels
from big_retrieval.interop.read import is_exported, is_ours, locate, read
from big_retrieval.interop.source import CheckpointContents, Flat
from big_retrieval.interop.torch_weights import read_folder

log = logging.getLogger(__name__)
LOSS = Contrastive(logit_scale=LogitScale(max=None))  # a published model holds no more of a loss
USUAL_SIZE = 224  # pixels, where neither the arrays nor a settings file tell


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
      UserError: nothing usable there, parameters that are missing or unknown, or a tokenizer that
        does not fit.
    """
    folder, _ = locate(path)
    if folder is not None and (is_ours(folder) or is_exported(folder)):
        if tokenizer or pool or head:
            what = "a run of ours" if is_ours(folder) else "an export of ours with its own settings"
            raise UserError(f"{path} is {what}: leave tokenizer, pool and head out.")
        return _trained_here(folder, like, batch_size)
    source = read(path)
    compatibility.no_surprise(source, ())
    if head:
        source = _lexical(source, head, pool)
    elif pool:
        source = _pooled(source, pool)
    words = _tokenizer(source, tokenizer)
    config = config_of(source, like, tokenizer)
    for line in _told(source, config):
        log.info(line)
    weights = traverse_util.unflatten_dict(_params(source, config), sep="/")
    return put_together(Path(source.origin), config, words, weights, batch_size)


def _trained_here(folder: Path, like: Config | None, batch_size: int) -> TrainedModel:
    """Returns a model of this package, with the data and evaluators of another config."""
    if is_ours(folder):
        model = load(folder, batch_size=batch_size)
    else:
        tokenizer = FixedLengthTokenizer.load(folder / "tokenizer.json")
        config, weights = read_folder(folder)
        model = put_together(folder, config, tokenizer, weights, batch_size)
    if like is None:
        return model
    taken = {key: getattr(like, key) for key in ("data", "evals", "best_metric", "final_weights")}
    config = dataclasses.replace(model.config, **taken)
    return dataclasses.replace(model, config=config)


def _told(source: CheckpointContents, config: Config) -> Iterator[str]:
    """Yields messages about an import."""
    for name, part in source.parts.items():
        size = sum(x.size for x in part.params.values())
        yield f"{name}: {part.kind.name}, {part.tower.describe()}, {size:,} parameters"
        if part.lexical is not None:
            yield f"{name}: lexical, {part.lexical.activation} of every word's largest logit"
        elif part.head:
            yield f"{name}: projected to {part.head_config.dim} dimensions"
    if source.unused:
        yield f"of no use here and left out: {', '.join(source.unused)}"
    for use, text in source.settings.prompts.items():
        yield f"texts as {use} should begin with {text!r}; that is not done for you"
    yield from source.settings.notes
    yield f"scored by the topology {config.topology!r}"


def _lexical(source: CheckpointContents, head: str, pool: str) -> CheckpointContents:
    """Returns the checkpoint as a lexical encoder."""
    if head != "lexical":
        raise UserError(f"head {head!r} is unknown; known: lexical.")
    if pool:
        raise UserError(
            f"pool {pool!r} does not go with a lexical head, which reads all positions; leave it "
            "out."
        )
    return as_lexical(source)


def _pooled(source: CheckpointContents, pool: str) -> CheckpointContents:
    """Returns the checkpoint with another pooling of texts."""
    if any(part.lexical is not None for part in source.parts.values()):
        raise UserError(
            f"{source.origin} is a lexical encoder, which reads all positions: leave pool out."
        )
    if "text" not in source.parts or pool not in ("first", "last", "mean"):
        raise UserError(f"pool {pool!r}: it is first, last or mean, for models that read texts.")
    text: Any = source.parts["text"]
    tower = dataclasses.replace(text.tower, pool=pool)
    return dataclasses.replace(
        source, parts=source.parts | {"text": dataclasses.replace(text, tower=tower)}
    )


def _tokenizer(source: CheckpointContents, path: str) -> FixedLengthTokenizer:
    """Returns the checkpoint's tokenizer or the given one, whose ids the word table must have."""
    if "text" not in source.parts:
        from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
        from big_retrieval.data.text.wordpiece import SPECIALS

        return wordpiece_tokenizer(SPECIALS)  # nothing is read with it
    place = path or (str(source.settings.tokenizer) if source.settings.tokenizer else "")
    if not place:
        raise UserError(
            f"{source.origin} comes without a tokenizer: give its file, folder or hub name with "
            "--tokenizer (for CLIP, bpe_simple_vocab_16e6.txt.gz)."
        )
    found = load_tokenizer("auto", place)
    rows = source.parts["text"].params["token_embedding"].shape[0]
    if found.vocab_size > rows:
        raise UserError(
            f"the tokenizer {place} has {found.vocab_size:,} ids, the word table of "
            f"{source.origin} {rows:,} rows: it belongs to another model."
        )
    compatibility.check_end(source, found)
    return found


def config_of(source: CheckpointContents, like: Config | None, tokenizer: str = "") -> Config:
    """Returns the configuration of an imported model.

    Args:
      like: config whose fields, data and evaluators are taken over; None for fields `image` and
        `text`, or two fields that share the only tower.
      tokenizer: path of the tokenizer, if it is not the checkpoint's.
    """
    base = Config(
        dtype="float32", topology="inner" if source.settings.normalise is False else "sphere"
    )
    towers = {name: part.tower for name, part in source.parts.items()}
    if any(tower.class_tokens > 1 for tower in towers.values()):
        base = dataclasses.replace(base, topology="oblique")
    if any(part.lexical is not None for part in source.parts.values()):
        base = dataclasses.replace(base, topology="inner")
    place = tokenizer or str(source.settings.tokenizer or "")
    fields = _fields(source, like)
    unused = set(towers) - {field.tower for field in fields.values()}
    return dataclasses.replace(
        base
        if like is None
        else dataclasses.replace(like, dtype="float32", topology=base.topology),
        towers={name: tower for name, tower in towers.items() if name not in unused},
        fields=fields,
        init={},
        tokenizer=Tokenizer(type="auto", path=place),
        losses={"main": LOSS},
    )


def _fields(source: CheckpointContents, like: Config | None) -> dict[str, Any]:
    if like is not None:
        known = {name: each for name, each in like.encoded.items() if each.modality in source.parts}
        return {name: _field(source, each) for name, each in known.items()}
    if len(source.parts) == 2:
        return {"image": _field(source, ImageField()), "text": _field(source, TextField())}
    (side,) = source.parts
    field = ImageField(side="query") if side == "image" else TextField(tower="text")
    both = {side: field, "document": dataclasses.replace(field, side="document")}
    return {name: _field(source, each) for name, each in both.items()}


def _field(source: CheckpointContents, field: Any) -> Any:
    """Returns a field as the checkpoint's tower reads it."""
    part = source.parts[field.modality]
    head = part.head_config
    if field.modality == "image":
        pixels = source.pixels(part) or Pixels()
        size = part.image_size or pixels.size or USUAL_SIZE
        return dataclasses.replace(
            field,
            tower="image",
            size=size,
            head=head,
            **pixels.keys(),
        )
    whole = part.positions - part.tower.class_tokens + 1
    length = min(whole, source.settings.length or whole)
    prefix = source.settings.prefix + field.prefix
    return dataclasses.replace(field, tower="text", length=length, prefix=prefix, head=head)


def _params(source: CheckpointContents, config: Config) -> Flat:
    logit_scale = source.logit_scale
    if logit_scale is None:
        logit_scale = np.log(LOSS.logit_scale.init)
    found: Flat = {"scalars/main/logit_scale": np.asarray(logit_scale, np.float32)}
    for name, tower in config.towers.items():
        part = source.parts[name]
        fields = [field for field in config.fields.values() if field.tower == name]
        params = fit_tower(tower, part, fields).params
        found |= {f"{name}/{path}": array for path, array in params.items()}
        found |= {f"batch_stats/{name}/{path}": array for path, array in part.stats.items()}
    for name, field in config.encoded.items():
        for path, array in source.parts[field.modality].head.items():
            found[f"{name}_head/{path}"] = array
    return found
