"""Helpers for config files.

A config file starts from `base()`, changes keys and returns the ConfigDict:

    from big_retrieval.config import recipe

    def get_config(arg: str = ""):
        args = recipe.parse_arg(arg, batch=4096)
        c = recipe.base()
        c.batch_size = args.batch
        c.towers.image = recipe.vit("B/16", class_tokens=16)
        ...
        return recipe.runlocal(c) if args.runlocal else c
"""

import dataclasses
import difflib
from types import SimpleNamespace
from typing import Any

from big_retrieval import config as configs
from big_retrieval.config import (
    RESNET_SIZES,
    VIT_SIZES,
    Bert,
    Config,
    ImageField,
    Loss,
    ParameterGroup,
    Phase,
    Projection,
    ResNet,
    TextField,
    ViT,
    schema,
)
from big_retrieval.config.benchmarks import FORMS, beir_evaluators, image_evaluators
from big_retrieval.config.runlocal import ARGUMENT, note_argument
from big_retrieval.config.runlocal import runlocal as runlocal
from big_retrieval.errors import UserError

Editable = Any  # a ConfigDict, whose attributes have no static types


def base() -> Editable:
    """Returns the defaults as a ConfigDict."""
    return schema.to_config_dict(Config())


def entry(value: Any, **changes: Any) -> Editable:
    """Returns a dataclass of `config` with some values changed, to assign in a config file."""
    keys = {f.name for f in dataclasses.fields(value)}
    for key in changes:
        if key not in keys:
            raise UserError(schema.unknown_key(type(value).__name__, key, keys))
    return schema.to_config_dict(dataclasses.replace(value, **changes))


def vit(size: str = "B/16", **changes: Any) -> Editable:
    """Returns a vision transformer of a published size (`VIT_SIZES`), with some keys changed."""
    if size not in VIT_SIZES:
        raise UserError(f"ViT size {size!r} is unknown; known: {', '.join(VIT_SIZES)}.")
    names = ("patch", "width", "depth", "heads", "mlp")
    return entry(ViT(), **(dict(zip(names, VIT_SIZES[size], strict=True)) | changes))


def bert(**changes: Any) -> Editable:
    """Returns BERT base as published: 12 layers of 768, two token types, dropout 0.1."""
    published: dict[str, Any] = {
        "width": 768, "depth": 12, "heads": 12, "mlp": 3072, "final_norm": False,
        "token_types": 2, "epsilon": 1e-12, "dropout": 0.1,
    }  # fmt: skip
    return entry(Bert(), **(published | changes))


def resnet(depth: int = 50, **changes: Any) -> Editable:
    """Returns a residual network of a published depth (`RESNET_SIZES`), with some keys changed."""
    if depth not in RESNET_SIZES:
        choices = ", ".join(map(str, RESNET_SIZES))
        raise UserError(f"ResNet depth {depth!r} is unknown; known: {choices}.")
    blocks, bottleneck = RESNET_SIZES[depth]
    return entry(ResNet(), **({"blocks": blocks, "bottleneck": bottleneck} | changes))


def group(pattern: str, **changes: Any) -> Editable:
    """Returns settings of the parameters whose whole names match a regular expression.

    c.optimizer.groups.image = recipe.group("image/.*", frozen=True)
    """
    return entry(ParameterGroup(), pattern=pattern, **changes)


def layerwise(tower: str, depth: int, decay: float) -> dict[str, Editable]:
    """Returns a group for each layer of a transformer, with lower rates far from the output.

        c.optimizer.groups.update(recipe.layerwise("image", depth=12, decay=0.75))

    As in "BEiT: BERT Pre-Training of Image Transformers", layer k (0 to depth - 1) has the rate
    factor decay^(depth - k), parameters before layer 0 have decay^(depth + 1), and parameters after
    the last layer have 1.
    """
    layers = {
        f"{tower}_{k}": group(f"{tower}/layers_{k}/.*", lr_factor=decay ** (depth - k))
        for k in range(depth)
    }
    before = f"{tower}/(?!layers_|ln_final|ln_post).*"
    return {f"{tower}_in": group(before, lr_factor=decay ** (depth + 1)), **layers}


def phase(**changes: Any) -> Editable:
    """Returns a part of the run, to assign in `c.optimizer.phases`."""
    return entry(Phase(), **changes)


def image_text(
    c: Editable, *, dim: int, spheres: int | None = None, size: int = 224,
    length: int = 77,
) -> None:  # fmt: skip
    """Gives `c` one image field (document side) and one text field (query side).

    Args:
      dim: dimensions per class token after the projection.
      spheres: blocks of a single class token's `dim`; None with several class tokens.
      size: side of the image in pixels.
      length: maximum number of tokens of a text.
    """
    head = Projection(dim=dim, spheres=spheres)
    c.fields.image = entry(ImageField(), size=size, head=head)
    c.fields.text = entry(TextField(), length=length, head=head)


def small() -> Editable:
    """Returns the config of the examples: a small ViT and BERT on generated scenes, 300 steps."""
    c = base()
    c.total_steps, c.batch_size, c.dtype = 300, 128, "float32"
    size = {"width": 64, "depth": 2, "heads": 2, "mlp": 256, "embedding_std": 0.5}
    c.towers.image = entry(ViT(), patch=8, **size)
    c.towers.text = entry(Bert(), norm="pre", **size)
    image_text(c, dim=64, size=32, length=20)
    c.fields.image.crop_scale, c.fields.image.flip = (1.0, 1.0), 0.0
    c.tokenizer.vocab_size = 512
    c.optimizer.lr, c.optimizer.schedule.warmup_steps = 2e-3, 20
    c.evals.test = entry(configs.Retrieval())
    return c


def beir(c: Editable, folder: str, sets: str = "all") -> None:
    """Adds `beir_evaluators` of "all" sets, "none", or names such as "scifact+fiqa"."""
    if sets != "none":
        names = () if sets == "all" else sets.split("+")
        for name, evaluator in beir_evaluators(folder, names).items():
            c.evals[name] = entry(evaluator)


def image_benchmarks(c: Editable, folder: str, form: str) -> None:
    """Adds the `image_evaluators` of a form for the fields `image` and `text`, or none of them."""
    one_of("benchmarks", form, FORMS)
    if form != "none":
        for name, evaluator in image_evaluators(folder, form).items():
            c.evals[name] = entry(evaluator)


def main_loss(c: Editable, loss: Loss, **changes: Any) -> None:
    """Replaces `losses.main`, keeping its logit scale."""
    new = entry(loss, **changes)
    if "logit_scale" in new and "logit_scale" not in changes:
        new.logit_scale = c.losses.main.get("logit_scale", new.logit_scale)
    c.losses.main = new


def parse_arg(arg: str, **defaults: Any) -> SimpleNamespace:
    """Reads the argument after the colon of `--config=file.py:arg`.

    Args:
      arg: comma-separated words and key=value pairs, e.g. `runlocal,batch=512`.
      **defaults: keys with their defaults; values are converted to the type of the default. A key
        with the default False may omit its value. `runlocal` is always a key.
    """
    values: dict[str, Any] = {"runlocal": False, **defaults}
    terms = list(filter(None, arg.split(",")))
    for term in terms:
        key, _, text = term.partition("=")
        if key not in values:
            near = difflib.get_close_matches(key, values, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise UserError(
                f"config argument {term!r} is unknown{hint}; known: {', '.join(sorted(values))}."
            )
        value_type = type(values[key])
        if value_type is bool:
            if text.lower() not in ("", "true", "false", "1", "0"):
                raise UserError(f"config argument {key} is {text!r}; it must be true or false.")
            values[key] = text.lower() in ("", "true", "1")
            continue
        try:
            values[key] = value_type(text)
        except ValueError:
            word = "a whole number" if value_type is int else "a number"
            raise UserError(f"config argument {key} is {text!r}; it must be {word}.") from None
    if values["runlocal"]:
        note_argument(any(term.partition("=")[0] == ARGUMENT for term in terms))
    return SimpleNamespace(**values)


def one_of(key: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises a UserError if a config argument is not one of the choices."""
    if value not in choices:
        raise UserError(f"config argument {key} is {value!r}; known: {', '.join(choices)}.")
