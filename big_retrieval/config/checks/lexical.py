"""Which heads, towers and topologies go together; one of the parts of `checks`."""

from collections.abc import Iterator

from big_retrieval.config import Config


def lexical(c: Config) -> Iterator[str]:
    """Sentences about lexical heads and towers that only these can read."""
    for name, field in c.encoded.items():
        path, tower = f"config.fields.{name}.head", c.towers[field.tower]
        yield from tower.check_head(field.head, path, f"config.towers.{field.tower}")
        if field.head.lexical:
            yield from field.head.check(c, name, path)
    for names in compared(c):
        yield from _same_terms(c, names)


def compared(c: Config) -> list[set[str]]:
    """The sets of fields that losses compare with each other; all fields if no loss says so."""
    found = [set(loss.compares(c)) & c.encoded.keys() for loss in c.losses.values()]
    return [names for names in found if names] or [set(c.encoded)]


def _same_terms(c: Config, names: set[str]) -> Iterator[str]:
    """Checks that compared fields have the same terms."""
    heads = {name: field.head for name, field in c.encoded.items() if name in names}
    lexicals = sorted(name for name, head in heads.items() if head.lexical)
    others = sorted(set(heads) - set(lexicals))
    if lexicals and others:
        yield (
            f"config.fields.{lexicals[0]}.head.type is 'lexical' and config.fields.{others[0]}."
            "head.type 'projection', which cannot be compared: give both the same."
        )
        return
    rules = {name: head.terms for name, head in heads.items() if head.lexical}
    if len(set(rules.values())) > 1:
        have = " and ".join(f"config.fields.{n}.head.terms {r!r}" for n, r in rules.items())
        yield f"{have} cannot be compared: give all the same."
    sizes = {
        c.fields[name].tower: tower.vocab_size
        for name in lexicals
        if (tower := c.towers[c.fields[name].tower]).word_table
    }
    if len(set(sizes.values())) > 1:
        have = " and ".join(f"config.towers.{t}.vocab_size is {v}" for t, v in sizes.items())
        yield f"{have}: lexical heads of both sides need the same terms; give both the same."
