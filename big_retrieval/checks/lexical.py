"""Which heads, towers and topologies go together; one of the parts of `checks`."""

from collections.abc import Iterator

from big_retrieval.columns import check_rule
from big_retrieval.config import (
    Bert,
    Config,
    Lexical,
    ResNet,
    ViT,
)


def lexical(c: Config) -> Iterator[str]:
    """Sentences about lexical heads and towers that only these can read."""
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
