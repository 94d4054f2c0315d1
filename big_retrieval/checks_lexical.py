"""Which heads, towers and topologies go together; one of the parts of `checks`."""

from collections.abc import Iterator

from big_retrieval.config import Bert, Config, ImageField, Lexical


def lexical(c: Config) -> Iterator[str]:
    """Sentences about lexical heads, and about towers that only these can read."""
    for name, field in c.fields.items():
        path, tower = f"config.fields.{name}", c.towers[field.tower]
        pool = f"config.towers.{field.tower}.pool"
        if not isinstance(field.head, Lexical):
            if isinstance(tower, Bert) and tower.pool == "none":
                yield (
                    f"{pool} is 'none', which gives all positions: set it to 'first', 'last' or "
                    f"'mean' for a projection, or {path}.head.type to 'lexical'."
                )
            continue
        if isinstance(field, ImageField) or not isinstance(tower, Bert):
            yield (
                f"{path}.head.type is 'lexical', which reads texts only; set it to 'projection' "
                "for images."
            )
            continue
        if tower.pool != "none":
            yield (
                f"{path}.head.type 'lexical' reads all positions of a text, but {pool} is "
                f"{tower.pool!r}: set it to 'none'."
            )
        if tower.class_tokens > 1:
            yield (
                f"{path}.head.type 'lexical' has no use for config.towers.{field.tower}."
                f"class_tokens {tower.class_tokens}: set it to 1."
            )
        if c.topology != "inner":
            yield (
                f"{path}.head.type 'lexical' is scored by inner products: set config.topology to "
                f"'inner' instead of {c.topology!r}."
            )
        if field.head.epsilon <= 0:
            yield f"{path}.head.epsilon is {field.head.epsilon}; it must be positive."
    yield from _same_columns(c)


def _same_columns(c: Config) -> Iterator[str]:
    """Both sides have the same columns."""
    heads = {name: field.head for name, field in c.fields.items()}
    lexicals = sorted(name for name, head in heads.items() if isinstance(head, Lexical))
    others = sorted(set(heads) - set(lexicals))
    if lexicals and others:
        yield (
            f"config.fields.{lexicals[0]}.head.type is 'lexical' and config.fields.{others[0]}."
            "head.type 'projection', which cannot be compared: give both the same."
        )
        return
    sizes = {
        c.fields[name].tower: tower.vocab_size
        for name in lexicals
        if isinstance(tower := c.towers[c.fields[name].tower], Bert)
    }
    if len(set(sizes.values())) > 1:
        have = " and ".join(f"config.towers.{t}.vocab_size is {v}" for t, v in sizes.items())
        yield f"{have}: lexical heads of both sides need the same columns; give both the same."
