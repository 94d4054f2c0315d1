"""What a look at a source tells before anything is trained on it.

A sample of the records, evenly spread, is read as training would read it; captions are counted over
all records where the source has them at hand.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from big_retrieval.data.damage import kind_of, record_at
from big_retrieval.data.duplicates import look
from big_retrieval.data.fields.contents import of_text
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import Text, source_texts
from big_retrieval.data.images.decoding import Encoded, picture
from big_retrieval.data.judged.graded import GradedPairs
from big_retrieval.data.mixture import MixedSource
from big_retrieval.data.negatives import NegativeSampling, read_negatives
from big_retrieval.data.sources import RecordSource, evenly_spaced
from big_retrieval.errors import Damaged

EXAMPLES = 5  # texts that are printed
PERCENTILES = (50, 90, 99, 100)
BINS = 10  # of the scores of judged pairs; fewer different ones are counted one by one


@dataclass
class Sample:
    """What the sampled records hold.

    Attributes:
      damaged: what is wrong -> how many.
      lacking: optional field -> records without it.
      texts: usable texts of each record and text column.
      negatives: how many hard negatives each record has, where the configuration asks for some.
      duplicates: images whose content an earlier one had.
    """

    read: int = 0
    damaged: Counter[str] = field(default_factory=Counter)
    lacking: Counter[str] = field(default_factory=Counter)
    texts: dict[str, list[tuple[Text, ...]]] = field(default_factory=dict)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    negatives: list[int] = field(default_factory=list)
    duplicates: int = 0
    examples: list[str] = field(default_factory=list)


def present(
    source: RecordSource, readers: Mapping[str, FieldReader], tries: int
) -> dict[str, FieldReader]:
    """The fields that a source's records have; all of them where no record can be read.

    Args:
      tries: from how many records, the first that can be read decides.
    """
    for index in evenly_spaced(len(source), tries).tolist():
        try:
            with record_at(source.place(index)):
                columns = source[index].keys()
        except Damaged:
            continue
        found = {
            name: each
            for name, each in readers.items()
            if each.field.columns().get("column") in {None, *columns}
        }
        return found or dict(readers)
    return dict(readers)


def take(
    source: RecordSource,
    readers: Mapping[str, FieldReader],
    limit: int,
    negatives: NegativeSampling | None = None,
) -> Sample:
    """Reads up to `limit` records, evenly spread over the source, with their hard negatives."""
    found, seen = Sample(), set()
    indices = evenly_spaced(len(source), limit).tolist()
    shown = set(evenly_spaced(len(indices), EXAMPLES).tolist())
    for number, index in enumerate(indices):
        found.read += 1
        try:
            with record_at(source.place(index)) as place:
                _look(source, index, readers, found, seen, number in shown)
                if negatives is not None:
                    value = source[index].get(negatives.column)
                    found.negatives.append(len(read_negatives(value, negatives.column, place)))
        except Damaged as problem:
            found.damaged[kind_of(problem.why)] += 1
    return found


def _look(
    source: RecordSource,
    index: int,
    readers: Mapping[str, FieldReader],
    found: Sample,
    seen: set[bytes],
    show: bool,
) -> None:
    """Adds one record to what was found."""
    record, said = source[index], ()
    for name, reader in sorted(readers.items()):
        if reader.field.optional and reader.lacks(record):
            found.lacking[name] += 1
            continue
        if reader.field.modality == "text":
            texts = source_texts(source, index, reader)
            found.texts.setdefault(name, []).append(texts)
            said = said or texts
            continue
        if reader.field.modality != "image":
            reader.value(source, index, 0)  # to see whether it can be read
            continue
        value = record.get(reader.field.column)
        pixels = picture(value, source.name)
        data = value.data if isinstance(value, Encoded) else pixels.tobytes()
        digest = hashlib.blake2b(data, digest_size=16).digest()
        found.duplicates += digest in seen
        seen.add(digest)
        found.sizes.append(pixels.shape[:2])
    if show:
        words = (said[0],) if said and isinstance(said[0], str) else said[0] if said else ()
        found.examples.append(" · ".join(filter(None, words)))


def describe(source: RecordSource, readers: Mapping[str, FieldReader], sample: Sample) -> list[str]:
    """Lines about records, images and texts."""
    whole = "all" if sample.read == len(source) else f"{sample.read:,} of them, evenly spread"
    lines = [f"records     {len(source):,} in {source.name}; looked at: {whole}"]
    if isinstance(source, MixedSource):
        for name, share in source.shares.items():
            size = len(source.parts[name])
            passes = share * len(source) / size
            lines.append(
                f"  part      {name}: {size:,} records, {share:.1%} of the examples, "
                f"{passes:.2f} passes an epoch"
            )
    lines += describe_qrels(source)
    bad = sum(sample.damaged.values())
    reasons = "; ".join(f"{n} x {why}" for why, n in sample.damaged.most_common(8))
    lines.append(
        f"damaged     {bad} ({bad / max(1, sample.read):.2%})" + (f": {reasons}" * bool(bad))
    )
    lines += [f"without     {name}: {n:,}" for name, n in sorted(sample.lacking.items())]
    if sample.negatives:
        mean, without = np.mean(sample.negatives), sample.negatives.count(0)
        lines.append(f"negatives   {mean:.1f} a record, {without:,} records without")
    if sample.sizes:
        sides = np.array(sample.sizes)
        low, middle, high = (np.percentile(sides, q, axis=0).astype(int) for q in (0, 50, 100))
        lines.append(
            f"images      height x width: smallest {low[0]} x {low[1]}, median {middle[0]} x "
            f"{middle[1]}, largest {high[0]} x {high[1]}; {sample.duplicates} duplicates"
        )
    for name, texts in sorted(sample.texts.items()):
        lines += _describe_texts(name, readers[name], texts)
    return lines


def describe_shared(source: RecordSource, readers: Mapping[str, FieldReader]) -> list[str]:
    """Lines about records that share texts or images, over all records where they are not many."""
    count = len(source)
    return [
        f"shared      {name}: {found.records:,} of {found.seen:,} records have one that others "
        f"have, too ({found.values:,} different)"
        + (f"; looked at: a sample of {count:,}" if found.seen < count else "")
        for name, found in sorted(look(source, readers).shared.items())
        if found.records
    ]


def describe_qrels(source: RecordSource) -> list[str]:
    """Lines about the qrels of a source, or of those of a mixture's parts that have some."""
    if isinstance(source, MixedSource):
        return [line for part in source.parts.values() for line in describe_qrels(part)]
    if not isinstance(source, GradedPairs):
        return []
    found, documents = source.qrels, len(source.documents)
    counts, judged = found.counts(), len(np.unique(found.document))
    score = found.score
    return [
        f"judged      {len(found):,} pairs of {len(source.queries):,} queries and {documents:,} "
        f"documents ({judged:,} of them judged); {counts.mean():.1f} a query, {counts.min():,} to "
        f"{counts.max():,}",
        f"  scores    {score.min():g} to {score.max():g}, median {np.median(score):g}; "
        + histogram(score),
        *(f"  skipped   {note}" for note in source.notes),
    ]


def histogram(score: np.ndarray) -> str:
    """How many scores [n] there are of each value, or in each tenth between the extremes."""
    values, counts = np.unique(score, return_counts=True)
    if len(values) <= BINS:
        return ", ".join(f"{v:g}: {n:,}" for v, n in zip(values, counts, strict=True))
    counts, edges = np.histogram(score, BINS)
    return ", ".join(f"to {e:g}: {n:,}" for e, n in zip(edges[1:], counts, strict=True))


def _describe_texts(name: str, reader: Any, texts: list[tuple[Text, ...]]) -> list[str]:
    """Lines about one text field: how many, how long, how often the same."""
    flat = [text for several in texts for text in several]
    duplicates = len(flat) - len(set(map(of_text, flat)))
    common = Counter(flat).most_common(1)[0]
    lines = [
        f"{name:<11} {len(flat) / len(texts):.2f} a record, {duplicates} duplicates"
        + (f", most often {common[0]!r:.60} ({common[1]} x)" if common[1] > 1 else "")
    ]
    if reader.tokenizer is None:
        return lines
    length = reader.field.length
    whole = replace(reader, field=replace(reader.field, length=max(length, 2048)))
    parts = (flat[at : at + 256] for at in range(0, len(flat), 256))
    counts = np.concatenate([whole.stack(part)["mask"].sum(1) for part in parts])
    at = ", ".join(f"{q}% {int(np.percentile(counts, q))}" for q in PERCENTILES)
    cut = float(np.mean(counts > length))
    lines.append(f"  tokens    {at}; the context has {length}, so {cut:.1%} are cut")
    return lines
