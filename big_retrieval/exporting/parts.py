"""The encoders of a trained model, as they are handed to another library."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from big_retrieval.config import Config
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer
from big_retrieval.errors import UserError
from big_retrieval.inference.load import TrainedModel
from big_retrieval.interop.source import OUR_LOGIT_SCALE, Flat, below

# What fields that are exported as one encoder must have alike, by modality.
ALIKE = {
    "text": ("length",),
    "image": ("size", "eval_resize", "eval_squash", "interpolation", "eval_margin", "mean", "std"),
}


@dataclass(frozen=True)
class Encoding:
    """One encoder: a tower and the head behind it.

    Attributes:
      fields: name -> configuration of the fields that it encodes; of one modality.
      tower_name: of its tower in the config.
      tower: its configuration.
      params: path below the tower -> array; positions behind the field's length are cut off.
      stats: path below the tower -> running average of a batch norm.
      head_params: path below the head -> array.
    """

    fields: Mapping[str, Any]
    tower_name: str
    tower: Any
    params: Flat
    stats: Flat
    head_params: Flat

    @property
    def name(self) -> str:
        """Its first field's name."""
        return next(iter(self.fields))

    @property
    def field(self) -> Any:
        """Its first field; all are alike in what matters here."""
        return self.fields[self.name]

    @property
    def head(self) -> Any:
        """The configuration of the head."""
        return self.field.head

    @property
    def pool(self) -> str:
        """How positions become one vector; "none" for heads that read all of them."""
        own = getattr(self.head, "pool", "tower")
        return getattr(self.tower, "pool", "") if own == "tower" else own

    @property
    def positions(self) -> int:
        """Rows of the position table."""
        return self.params["position_embedding"].shape[0]

    def prompts(self) -> dict[str, str]:
        """What stands before every text, by field; without the fields that have nothing there."""
        prefixes = {name: getattr(field, "prefix", "") for name, field in self.fields.items()}
        return {name: prefix for name, prefix in prefixes.items() if prefix}


@dataclass(frozen=True)
class Exported:
    """What an export is made of.

    Attributes:
      model: it, which computes in float32.
      params: all parameters and running averages by their paths.
      encodings: one or several.
      logit_scale: the logarithm of what scores are multiplied by; None: the loss has none.
    """

    model: TrainedModel
    params: Flat
    encodings: tuple[Encoding, ...]
    logit_scale: np.ndarray | None

    @property
    def config(self) -> Config:
        """Of the run that trained the model."""
        return self.model.config

    @property
    def tokenizer(self) -> FixedLengthTokenizer:
        """Of the model's text fields."""
        return self.model.tokenizer

    @property
    def modalities(self) -> list[str]:
        """Of the encodings, in the order of the alphabet."""
        return sorted(each.field.modality for each in self.encodings)

    def of(self, modality: str) -> Encoding:
        """The encoder of a modality, which is there."""
        return next(each for each in self.encodings if each.field.modality == modality)

    def normalises(self) -> bool:
        """Whether dense embeddings have norm 1."""
        return self.config.topology != "inner"


def take_apart(model: TrainedModel, fields: Sequence[str] = (), *, apart: bool = False) -> Exported:
    """The encoders of a model.

    Args:
      model: to export.
      fields: names of those to export; (): all.
      apart: whether every field is one, with all positions of its tower.

    Raises:
      UserError: no such field, or fields that share a tower but are read differently.
    """
    unknown = sorted(set(fields) - set(model.config.encoded))
    if unknown:
        known = ", ".join(sorted(model.config.encoded))
        raise UserError(f"--field: the model has no field {unknown[0]!r}; it has: {known}.")
    params = _flat(model.weights)
    encodings: list[Encoding] = []
    for name, field in model.config.encoded.items():
        if fields and name not in fields:
            continue
        new = _encoding(model.config, params, name, field, whole=apart)
        same = next((each for each in encodings if not apart and _same(each, new)), None)
        if same is None:
            encodings.append(new)
            continue
        _check_alike(same, name, field)
        merged = dataclasses.replace(same, fields={**same.fields, name: field})
        encodings[encodings.index(same)] = merged
    scales = (x for name, x in params.items() if re.fullmatch(OUR_LOGIT_SCALE, name))
    scale = next(scales, None)
    return Exported(model, params, tuple(encodings), None if scale is None else scale.reshape(()))


def _flat(weights: Any) -> Flat:
    tree: Any = traverse_util.flatten_dict(jax.device_get(weights), sep="/")
    return {name: np.asarray(array) for name, array in tree.items()}


def _encoding(config: Config, params: Flat, name: str, field: Any, *, whole: bool) -> Encoding:
    tower, length = field.tower, 0 if whole else field.length
    own = below(params, f"{tower}/")
    if length and config.towers[tower].class_tokens == 1 and "position_embedding" in own:
        own["position_embedding"] = own["position_embedding"][:length]
    return Encoding(
        fields={name: field},
        tower_name=tower,
        tower=config.towers[tower],
        params=own,
        stats=below(params, f"batch_stats/{tower}/"),
        head_params=below(params, f"{field.shares_head or name}_head/"),
    )


def _same(one: Encoding, two: Encoding) -> bool:
    """Whether two fields have one tower, and equal heads."""
    if (one.tower_name, one.head) != (two.tower_name, two.head):
        return False
    a, b = one.head_params, two.head_params
    return a.keys() == b.keys() and all(np.array_equal(a[path], b[path]) for path in a)


def _check_alike(part: Encoding, name: str, field: Any) -> None:
    """Raises for a field that one encoder reads in another way than its first one."""
    for key in ALIKE.get(field.modality, ()):
        one, two = getattr(part.field, key), getattr(field, key)
        if one != two:
            raise UserError(
                f"the fields {part.name} and {name} have one encoder, but {key} is {one} of one "
                f"and {two} of the other: export one of them, --field={part.name}, or take "
                "--to=torch."
            )


def unlike(path: str, part: Any, wanted: Mapping[str, Any]) -> Iterator[str]:
    """The keys of a part of the config that another library cannot say, in words.

    Args:
      path: of the part, such as `config.towers.text`.
      part: a dataclass.
      wanted: key -> the value that it must have, or a tuple of several.
    """
    for key, value in wanted.items():
        have, allowed = getattr(part, key), value if isinstance(value, tuple) else (value,)
        if have not in allowed:
            only = " or ".join(repr(each) for each in allowed)
            yield f"{path}.{key} {have!r} (only {only})"
            if key == "type":  # a part of another type has other keys
                return
