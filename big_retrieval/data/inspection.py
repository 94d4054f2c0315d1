"""Contents of a source, as `big-retrieval data inspect` prints them.

An evenly spaced sample of the records is read as training would read it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from big_retrieval.data.damage import reason_group, record_at
from big_retrieval.data.duplicates import count_shared
from big_retrieval.data.fields.contents import text_key
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import Text, source_texts
from big_retrieval.data.images.decoding import picture
from big_retrieval.data.judged.graded import GradedPairs
from big_retrieval.data.mixture import MixedSource
from big_retrieval.data.negatives import NegativeSampling, read_negatives
from big_retrieval.data.sources import RecordSource, evenly_spaced
from big_retrieval.errors import Damaged

EXAMPLES = 5  # texts to print
PERCENTILES = (50, 90, 99, 100)


@dataclass
class Sample:
    """Contents of the sampled records.

    Attributes:
      damaged: reason -> number of records.
      lacking: optional field -> number of records without it.
      texts: text field -> usable texts of each record.
      sizes: height and width of each image.
      negatives: number of hard negatives of each record, if the config samples negatives.
    """

    read: int = 0
    damaged: Counter[str] = field(default_factory=Counter)
    lacking: Counter[str] = field(default_factory=Counter)
    texts: dict[str, list[tuple[Text, ...]]] = field(default_factory=dict)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    negatives: list[int] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)


def available_fields(
    source: RecordSource, readers: Mapping[str, FieldReader], tries: int
) -> dict[str, FieldReader]:
    """Returns the fields whose column is in the first readable record (of `tries`); else all."""
    for index in evenly_spaced(len(source), tries).tolist():
        try:
            with record_at(source.place(index)):
                columns = {None, *source[index]}
        except Damaged:
            continue
        available = {
            name: reader
            for name, reader in readers.items()
            if reader.field.columns().get("column") in columns
        }
        return available or dict(readers)
    return dict(readers)


def sample_records(
    source: RecordSource,
    readers: Mapping[str, FieldReader],
    limit: int,
    negatives: NegativeSampling | None = None,
) -> Sample:
    """Reads at most `limit` records, evenly spaced over the source, with their hard negatives."""
    sample = Sample()
    indices = evenly_spaced(len(source), limit).tolist()
    shown = set(evenly_spaced(len(indices), EXAMPLES).tolist())
    for position, index in enumerate(indices):
        sample.read += 1
        try:
            with record_at(source.place(index)) as place:
                _add_record(sample, source, index, readers, position in shown)
                if negatives is not None:
                    value = source[index].get(negatives.column)
                    sample.negatives.append(len(read_negatives(value, negatives.column, place)))
        except Damaged as error:
            sample.damaged[reason_group(error.why)] += 1
    return sample


def _add_record(
    sample: Sample,
    source: RecordSource,
    index: int,
    readers: Mapping[str, FieldReader],
    show: bool,
) -> None:
    record, example = source[index], ()
    for name, reader in sorted(readers.items()):
        if reader.field.optional and reader.lacks(record):
            sample.lacking[name] += 1
        elif reader.field.modality == "text":
            texts = source_texts(source, index, reader)
            sample.texts.setdefault(name, []).append(texts)
            example = example or texts
        elif reader.field.modality == "image":
            pixels = picture(record.get(reader.field.column), source.name)
            sample.sizes.append(pixels.shape[:2])
        else:
            reader.value(source, index, 0)  # raises if it cannot be read
    if show:
        text = example[0] if example else ""
        title_and_text = (text,) if isinstance(text, str) else text
        sample.examples.append(" · ".join(filter(None, title_and_text)))


def format_inspection(
    source: RecordSource, readers: Mapping[str, FieldReader], sample: Sample
) -> list[str]:
    """Returns lines about records, images and texts."""
    share = "all" if sample.read == len(source) else f"{sample.read:,} of them, evenly spread"
    lines = [f"records     {len(source):,} in {source.name}; looked at: {share}"]
    if isinstance(source, MixedSource):
        for name, share in source.shares.items():
            size = len(source.parts[name])
            passes = share * len(source) / size
            lines.append(
                f"  part      {name}: {size:,} records, {share:.1%} of the examples, "
                f"{passes:.2f} passes an epoch"
            )
    lines += format_qrels(source)
    bad = sum(sample.damaged.values())
    reasons = "; ".join(f"{n} x {reason}" for reason, n in sample.damaged.most_common(8))
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
            f"{middle[1]}, largest {high[0]} x {high[1]}"
        )
    for name, texts in sorted(sample.texts.items()):
        lines += _format_texts(name, readers[name], texts)
    return lines


def format_shared(source: RecordSource, readers: Mapping[str, FieldReader]) -> list[str]:
    """Returns lines about records that share texts or images."""
    count = len(source)
    return [
        f"shared      {name}: {x.records:,} of {x.seen:,} records have one that others "
        f"have, too ({x.values:,} different)"
        + (f"; looked at: a sample of {count:,}" if x.seen < count else "")
        for name, x in sorted(count_shared(source, readers).shared.items())
        if x.records
    ]


def format_qrels(source: RecordSource) -> list[str]:
    """Returns lines about a source's qrels; for a mixture, about the qrels of its parts."""
    if isinstance(source, MixedSource):
        return [line for part in source.parts.values() for line in format_qrels(part)]
    if not isinstance(source, GradedPairs):
        return []
    qrels, documents = source.qrels, len(source.documents)
    counts, judged, score = qrels.counts(), len(np.unique(qrels.document)), qrels.score
    return [
        f"judged      {len(qrels):,} pairs of {len(source.queries):,} queries and {documents:,} "
        f"documents ({judged:,} of them judged); {counts.mean():.1f} a query, {counts.min():,} to "
        f"{counts.max():,}",
        f"  scores    {score.min():g} to {score.max():g}, median {np.median(score):g}",
        *(f"  skipped   {note}" for note in source.notes),
    ]


def _format_texts(name: str, reader: Any, texts: list[tuple[Text, ...]]) -> list[str]:
    flat = [text for several in texts for text in several]
    duplicates = len(flat) - len(set(map(text_key, flat)))
    text, count = Counter(flat).most_common(1)[0]
    lines = [
        f"{name:<11} {len(flat) / len(texts):.2f} a record, {duplicates} duplicates"
        + (f", most often {text!r:.60} ({count} x)" if count > 1 else "")
    ]
    if reader.tokenizer is None:
        return lines
    length = reader.field.length
    uncut = replace(reader, field=replace(reader.field, length=max(length, 2048)))
    chunks = (flat[start : start + 256] for start in range(0, len(flat), 256))
    tokens = np.concatenate([uncut.stack(chunk)["mask"].sum(1) for chunk in chunks])
    shown = ", ".join(f"{q}% {int(np.percentile(tokens, q))}" for q in PERCENTILES)
    cut = float(np.mean(tokens > length))
    lines.append(f"  tokens    {shown}; the context has {length}, so {cut:.1%} are cut")
    return lines
