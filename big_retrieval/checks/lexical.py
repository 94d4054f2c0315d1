"""Which heads, towers, topologies and losses go together; one of the parts of `checks`."""

from collections.abc import Iterator

from big_retrieval.columns import check_rule
from big_retrieval.config import (
    Bert,
    Config,
    Lexical,
    ResNet,
    Sparsity,
    Vdr,
    ViT,
    is_lexical,
)
from big_retrieval.config.loss import top_of_documents


def lexical(c: Config) -> Iterator[str]:
    """Sentences about lexical heads, towers that only these can read, and their losses."""
    for name, field in c.encoded.items():
        path, tower = f"config.fields.{name}", c.towers[field.tower]
        pool = f"config.towers.{field.tower}.pool"
        if isinstance(field.head, Lexical):
            yield from _head(c, name, field.head)
        elif not isinstance(tower, ResNet) and tower.pool == "none":
            yield (
                f"{pool} is 'none', which gives all positions: set it to 'first', 'last' or "
                f"'mean' for a projection, or {path}.head.type to 'lexical'."
            )
    yield from _same_columns(c)
    yield from _loss(c)


def _head(c: Config, name: str, head: Lexical) -> Iterator[str]:
    """One lexical head."""
    field = c.fields[name]
    tower, path = c.towers[field.tower], f"config.fields.{name}.head"
    pool = f"config.towers.{field.tower}.pool"
    if isinstance(tower, ResNet):
        yield f"{path}.type is 'lexical', which reads patches of a 'vit' tower, not of a 'resnet'."
        return
    if tower.pool != "none":
        yield (
            f"{path}.type 'lexical' reads all positions, but {pool} is {tower.pool!r}: set it to "
            "'none'."
        )
    most = 0 if isinstance(tower, ViT) else 1
    if tower.class_tokens > most:
        yield (
            f"{path}.type 'lexical' has no use for config.towers.{field.tower}."
            f"class_tokens {tower.class_tokens}: set it to {most}."
        )
    if c.topology != "inner":
        yield (
            f"{path}.type 'lexical' is scored by inner products: set config.topology to 'inner' "
            f"instead of {c.topology!r}."
        )
    if field.modality == "image" and head.tied:
        yield f"{path}.tied: images have no word table; set it to False."
    if head.epsilon <= 0:
        yield f"{path}.epsilon is {head.epsilon}; it must be positive."
    if head.bias_init and not head.use_bias:
        yield f"{path}.bias_init is {head.bias_init}, but there is no bias: set use_bias to True."
    if head.pooling_top is not None and (head.pooling != "mean" or head.pooling_top < 1):
        yield (
            f"{path}.pooling_top is {head.pooling_top}; it is for pooling 'mean' and at least 1, "
            "or None."
        )
    if head.top is not None and head.top < 0:
        yield f"{path}.top is {head.top}; it must be 0 or more, or None for all columns."
    if head.top == 0 and not (head.own_words and field.modality == "text"):
        own = f", or {path}.own_words to True" if field.modality == "text" else ""
        yield f"{path}.top is 0, which leaves no column: set it to 1 or more{own}."
    if problem := check_rule(head.columns):
        yield f"{path}.columns is {problem}."


def _same_columns(c: Config) -> Iterator[str]:
    """Both sides have the same columns."""
    heads = {name: field.head for name, field in c.encoded.items()}
    lexicals = sorted(name for name, head in heads.items() if isinstance(head, Lexical))
    others = sorted(set(heads) - set(lexicals))
    if lexicals and others:
        yield (
            f"config.fields.{lexicals[0]}.head.type is 'lexical' and config.fields.{others[0]}."
            "head.type 'projection', which cannot be compared: give both the same."
        )
        return
    rules = {name: head.columns for name, head in heads.items() if isinstance(head, Lexical)}
    if len(set(rules.values())) > 1:
        have = " and ".join(f"config.fields.{n}.head.columns {r!r}" for n, r in rules.items())
        yield f"{have} cannot be compared: give all the same."
    sizes = {
        c.fields[name].tower: tower.vocab_size
        for name in lexicals
        if isinstance(tower := c.towers[c.fields[name].tower], Bert)
    }
    if len(set(sizes.values())) > 1:
        have = " and ".join(f"config.towers.{t}.vocab_size is {v}" for t, v in sizes.items())
        yield f"{have}: lexical heads of both sides need the same columns; give both the same."


def _loss(c: Config) -> Iterator[str]:
    """What the losses of lexical representations need."""
    lexical = is_lexical(c)
    if isinstance(c.loss, Vdr):
        if not lexical:
            name = next(n for n, f in c.encoded.items() if not isinstance(f.head, Lexical))
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
