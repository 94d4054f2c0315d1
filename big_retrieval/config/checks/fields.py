"""Checks of fields, their heads and their sides."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from big_retrieval.config import Config, Field

OF_MODEL = ("scalars", "losses", "batch_stats", "model")  # entries of the parameter tree
OF_BATCH = (
    "record", "valid", "damaged", "query_id", "document_id", "weight", "negatives",
    "negatives_valid", "negatives_id",
)  # fmt: skip


def check_fields(c: Config) -> Iterator[str]:
    """Yields an error message for every mistake in a field of `config.fields`."""
    for name, field in c.fields.items():
        path = f"config.fields.{name}"
        yield from field.check(c, path)
        if "present" in field.shapes():
            yield (
                f"{path} has an array 'present', the name of the mask of rows that have the field: "
                f"rename it in the shapes and stack of {type(field).__name__}."
            )
        if field.side == "target":
            yield from _target(path, field)
            continue
        if field.tower not in c.towers:
            choices = ", ".join(sorted(c.towers)) or "none"
            yield f"{path}.tower is {field.tower!r}, which config.towers lacks (it has: {choices})."
            continue
        tower, tower_path = c.towers[field.tower], f"config.towers.{field.tower}"
        if not tower.reads(field):
            yield (
                f"{path}.tower is {field.tower!r}, whose type {tower.type!r} cannot read fields of "
                f"type {field.type!r}; name another of config.towers."
            )
            continue
        yield from tower.check_field(field, path, tower_path)
        yield from tower.check_head(field.head, f"{path}.head", tower_path)
        yield from field.head.check(c, name, f"{path}.head")
        yield from _shared(c, name)
        yield from _same_input(c, name)


def _same_input(c: Config, name: str) -> Iterator[str]:
    """Checks a field that shares the drawn value and the tower's run with another field."""
    field, path = c.fields[name], f"config.fields.{name}.same_input_as"
    if not field.same_input_as:
        return
    owner = c.encoded.get(field.same_input_as)
    if owner is None or field.same_input_as == name or owner.same_input_as:
        choices = (
            ", ".join(sorted(n for n, f in c.encoded.items() if not f.same_input_as)) or "none"
        )
        yield f"{path} is {field.same_input_as!r}; name a field without this key ({choices})."
        return
    free = ("head", "shares_head", "weight", "same_input_as")
    keys = [key.name for key in dataclasses.fields(field) if key.name not in free]  # type: ignore
    differ = [key for key in keys if getattr(field, key) != getattr(owner, key)]
    if differ:
        yield (
            f"{path} is {field.same_input_as!r}, but the two differ in {', '.join(differ)}: give "
            "both the same keys except head, shares_head and weight."
        )


def _target(path: str, field: Field) -> Iterator[str]:
    """Checks that a target sets no key that only encoded fields have."""
    if field.tower:
        yield (
            f"{path}.tower is {field.tower!r}, but no tower reads a field of side 'target': set it "
            "to '', or change the side."
        )
    if field.shares_head:
        yield f"{path}.shares_head: a field of side 'target' has no head; set it to ''."


def _shared(c: Config, name: str) -> Iterator[str]:
    field, path = c.fields[name], f"config.fields.{name}.shares_head"
    if not field.shares_head:
        return
    owner = c.encoded.get(field.shares_head)
    if owner is None or field.shares_head == name or owner.shares_head:
        owners = {other for other, x in c.encoded.items() if not x.shares_head} - {name}
        choices = ", ".join(sorted(owners)) or "none"
        yield f"{path} is {field.shares_head!r}; name another field without this key ({choices})."
        return
    if owner.tower not in c.towers or (field.head.across and owner.head == field.head):
        return
    same_width = c.towers[field.tower].width == c.towers[owner.tower].width
    if not same_width or owner.head != field.head or owner.modality != field.modality:
        yield (
            f"{path}: a head can be shared by fields of one modality whose towers are of one width"
            f"; give {name} and {field.shares_head} the same config.fields.<field>.head, too."
        )
    if field.head.lexical and field.head.tied and field.tower != owner.tower:
        yield f"{path}: a tied head needs the word table of its tower; share the tower, too."


def _compared(c: Config) -> list[set[str]]:
    """Returns the sets of fields that losses compare; all fields in one set if no loss does."""
    compared = [set(loss.compares(c)) & c.encoded.keys() for loss in c.losses.values()]
    return [names for names in compared if names] or [set(c.encoded)]


def _same_terms(c: Config, heads: Mapping[str, Any]) -> Iterator[str]:
    """Checks that the heads of compared fields have the same terms."""
    lexicals = sorted(name for name, head in heads.items() if head.lexical)
    dense = sorted(set(heads) - set(lexicals))
    if lexicals and dense:
        yield (
            f"config.fields.{lexicals[0]}.head.type is 'lexical' and config.fields.{dense[0]}."
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


def check_sides(c: Config) -> Iterator[str]:
    """Checks that each side has fields for an embedding, and that the sides can be compared."""
    for side in ("query", "document"):
        members = {name: c.fields[name] for name in c.side(side)}
        if not members:
            yield f"config.fields has no field of side {side!r}; the loss compares both sides."
        elif not any(field.weight > 0 for field in members.values()):
            yield (
                f"config.fields: all fields of side {side!r} ({', '.join(sorted(members))}) have "
                "weight 0; their average needs one above 0."
            )
        if len(members) == 1 and next(iter(members.values())).optional:
            name = next(iter(members))
            yield (
                f"config.fields.{name}.optional: it is the only field of its side; a record "
                "without it has nothing to compare."
            )
    for names in _compared(c):
        heads = {name: field.head for name, field in c.encoded.items() if name in names}
        yield from _same_terms(c, heads)
        shapes = {name: head.embedding_shape(c, name, 0) for name, head in heads.items()}
        if len(set(shapes.values())) > 1:
            text = ", ".join(f"{name} {m} x {n}" for name, (m, n) in sorted(shapes.items()))
            yield (
                f"the fields' embeddings differ ({text}, class tokens x dimensions): give both "
                "sides the same towers.<tower>.class_tokens and fields.<field>.head."
            )
    yield from _names(c)


def _names(c: Config) -> Iterator[str]:
    """Checks that no tower or field has the name of another part of the model or of a batch."""
    for name in (*OF_MODEL, *(f"{field}_head" for field in c.fields)):
        if name in c.towers:
            yield f"config.towers.{name}: another part of the model has this name; rename it."
    for name in OF_BATCH:
        if name in c.fields:
            yield f"config.fields.{name}: batches use this name for other arrays; rename it."
    for group, names in (("towers", c.towers), ("fields", c.fields)):
        for name in names:
            if "/" in name or not name:
                yield f"config.{group} has the name {name!r}; use letters, digits and underscores."
