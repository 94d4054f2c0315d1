"""Which heads, towers, topologies and losses go together; one of the parts of `checks`."""

from collections.abc import Iterator

from big_retrieval.config import (
    Config,
    Sparsity,
    Vdr,
    is_lexical,
)
from big_retrieval.config.loss import top_of_documents


def lexical(c: Config) -> Iterator[str]:
    """Sentences about lexical heads, towers that only these can read, and their losses."""
    for name, field in c.encoded.items():
        path, tower = f"config.fields.{name}.head", c.towers[field.tower]
        yield from tower.check_head(field.head, path, f"config.towers.{field.tower}")
        if field.head.lexical:
            yield from field.head.check(c, name, path)
    yield from _same_columns(c)
    yield from _loss(c)


def _same_columns(c: Config) -> Iterator[str]:
    """Both sides have the same columns."""
    heads = {name: field.head for name, field in c.encoded.items()}
    lexicals = sorted(name for name, head in heads.items() if head.lexical)
    others = sorted(set(heads) - set(lexicals))
    if lexicals and others:
        yield (
            f"config.fields.{lexicals[0]}.head.type is 'lexical' and config.fields.{others[0]}."
            "head.type 'projection', which cannot be compared: give both the same."
        )
        return
    rules = {name: head.columns for name, head in heads.items() if head.lexical}
    if len(set(rules.values())) > 1:
        have = " and ".join(f"config.fields.{n}.head.columns {r!r}" for n, r in rules.items())
        yield f"{have} cannot be compared: give all the same."
    sizes = {
        c.fields[name].tower: tower.vocab_size
        for name in lexicals
        if (tower := c.towers[c.fields[name].tower]).word_table
    }
    if len(set(sizes.values())) > 1:
        have = " and ".join(f"config.towers.{t}.vocab_size is {v}" for t, v in sizes.items())
        yield f"{have}: lexical heads of both sides need the same columns; give both the same."


def _loss(c: Config) -> Iterator[str]:
    """What the losses of lexical representations need."""
    lexical = is_lexical(c)
    if isinstance(c.loss, Vdr):
        if not lexical:
            name = next(n for n, f in c.encoded.items() if not f.head.lexical)
            yield (
                f"config.loss.type 'vdr' compares lexical representations: set config.fields."
                f"{name}.head.type to 'lexical', or take another loss."
            )
        yield from _vdr(c, c.loss)
    sparsity = getattr(c.loss, "sparsity", Sparsity())
    for side in ("query", "document"):
        value, path = getattr(sparsity, side), f"config.loss.sparsity.{side}"
        if value < 0:
            yield f"{path} is {value}; it must be 0 or more."
        if value and not lexical:
            yield f"{path} is {value}, but there are no lexical heads; set it to 0."
    if sparsity.warmup_steps < 0:
        yield f"config.loss.sparsity.warmup_steps is {sparsity.warmup_steps}; it must be 0 or more."


def _vdr(c: Config, loss: Vdr) -> Iterator[str]:
    path = "config.loss"
    for key, top in (("top", loss.top), ("top_document", loss.top_document)):
        if top is not None and top < 0:
            yield f"{path}.{key} is {top}; it must be 0 or more, or None for all columns."
    if loss.false_negatives == "positives" and loss.mask.apply != "none":
        yield f"{path}.mask.apply goes with false_negatives 'keep' or 'mask' only."
    if loss.mask.weight < 0:
        yield f"{path}.mask.weight is {loss.mask.weight}; it must be 0 or more."
    if loss.mask.apply in ("bag", "both") and not loss.bag:
        yield f"{path}.mask.apply is {loss.mask.apply!r}, but {path}.bag is False: set it to True."
    yield from _words(c, loss)


def _words(c: Config, loss: Vdr) -> Iterator[str]:
    """Sides whose words the loss takes have some."""
    path = "config.loss"
    masked = loss.mask.apply != "none" and loss.mask.source == "bag"
    gates = loss.top, top_of_documents(loss)
    needs = {  # what takes words -> what to do about it
        "query": {
            f"{path}.bag to False": loss.bag,
            f"{path}.mask.source to 'gate'": masked,
            f"{path}.top above 0": gates[0] == 0,
        },
        "document": {
            f"{path}.symmetric to False": loss.symmetric and (loss.bag or gates[1] == 0),
        },
    }
    for side, reasons in needs.items():
        texts = [f for f in c.fields.values() if f.side == side and f.modality == "text"]
        wanted = [remedy for remedy, needed in reasons.items() if needed]
        if wanted and not texts:
            yield (
                f"{path} takes the words of the {side} side, which has no text field: turn "
                f"the sides around (config.fields.<field>.side), or set {' and '.join(wanted)}."
            )
