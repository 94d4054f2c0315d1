"""From the configuration to sources, tokenizer and field specifications."""

from collections.abc import Mapping
from pathlib import Path

from big_retrieval.config import Config, ImageField, JsonLines, Scenes
from big_retrieval.config import Source as SourceConfig
from big_retrieval.data import jsonl, scenes
from big_retrieval.data.pipeline import FieldSpec
from big_retrieval.data.sources import Source
from big_retrieval.data.text import Tokenizer, load_tokenizer, wordpiece_tokenizer
from big_retrieval.data.wordpiece import learn_wordpiece
from big_retrieval.errors import UserError


def make_source(config: SourceConfig) -> Source:
    """Opens a source of records.

    Raises:
      UserError: its files are not there; the sentence says how to get them.
    """
    if isinstance(config, Scenes):
        return scenes.Scenes(config.split, size=config.size, count=config.count, seed=config.seed)
    return _json_lines(config)


def _json_lines(config: JsonLines) -> Source:
    if not config.path:
        raise UserError(
            "the data source 'jsonl' needs a path, e.g. --config.data.path=pairs.jsonl."
        )
    if not Path(config.path).exists():
        how = config.how_to_get or "write one JSON object a line with an image path and captions"
        raise UserError(
            f"the data {config.path} is not on this machine: check the path, or {how}; or try the "
            "same config small and on generated data with :runlocal behind its file name."
        )
    return jsonl.JsonLines(config.path, image=config.image, text=config.text)


def make_tokenizer(config: Config, source: Source) -> Tokenizer:
    """The tokenizer of a run: loaded, or learned from the training captions.

    Raises:
      UserError: a file that is missing or cannot be read, or a CLIP tokenizer without a path.
    """
    c = config.tokenizer
    if c.path:
        return load_tokenizer(c.type, c.path)
    if c.type != "wordpiece":
        raise UserError(
            f"config.tokenizer.type {c.type!r} needs config.tokenizer.path (a file, folder or hub "
            "name); only 'wordpiece' can be learned from the captions."
        )
    return wordpiece_tokenizer(learn_wordpiece(source.captions(), c.vocab_size))


def field_specs(config: Config, tokenizer: Tokenizer) -> Mapping[str, FieldSpec]:
    """How each field of a record is read."""
    specs = {}
    for name, field in config.fields.items():
        if isinstance(field, ImageField):
            specs[name] = FieldSpec(
                kind="image",
                column=field.column,
                size=field.size,
                crop_scale=field.crop_scale,
                crop_ratio=field.crop_ratio,
                flip=field.flip,
                flip_unsafe_words=field.flip_unsafe_words,
            )
        else:
            specs[name] = FieldSpec(
                kind="text", column=field.column, length=field.length, tokenizer=tokenizer
            )
    return specs
