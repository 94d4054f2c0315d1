"""Generated judged pairs: queries such as "red circle" and scenes with titles.

A document is a scene (`scenes.SceneRecords`) with a title that names one of its two objects, so
that neither the image nor the title is sufficient. Queries name one object ("red circle", "big red
circle") or two in relation ("red circle left of a blue square"). The fit f is the share of the
query's words (size, color, shape, relation) that are true: three quarters for the image, one
quarter for the title. The score is 1 + 99 f^2, rounded; 100 if all words are true of both.

A hash of the pair of kinds assigns scenes to one of two halves. A hash of the text makes queries
known or novel:

    split            queries   documents
    in_domain        known     first half
    novel_query      novel     first half
    novel_document   known     second half
    zero_shot        novel     second half
"""

import functools
import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from big_retrieval.config.ranges import Range, Seed
from big_retrieval.config.registry import register
from big_retrieval.config.sources import Source
from big_retrieval.data.formats.tables import Rows, Table, digest_of
from big_retrieval.data.judged.graded import GradedPairs, Names, SideRecords
from big_retrieval.data.judged.images import ImageColumn
from big_retrieval.data.judged.qrels import Qrels
from big_retrieval.data.sources import Record
from big_retrieval.data.synthetic.scene_parameters import KINDS
from big_retrieval.data.synthetic.scenes import COLOURS, RELATIONS, SHAPES, SIZES, SceneRecords

if TYPE_CHECKING:
    from big_retrieval.config.run import Config

MOST_DOCUMENTS = 1_000_000  # every query is compared with all documents at the start
SCENE_TEXTS = ("query", "title")
LEAST, MOST = 10, 30  # judged documents per query, of 400; MOST grows with the documents
OTHERS = 4  # arbitrary documents among the judged ones
NOVEL = 0.2  # share of the queries
TWO = 100  # maximum number of queries that name two objects
_IMAGE = 0.75  # share of the score
_ANY = -1  # size if the query does not name one


@register("source")
@dataclass(frozen=True)
class GradedScenes(Source):
    """Generated judged pairs: queries such as "red circle" and scenes with images and titles."""

    generated: ClassVar[bool] = True
    graded: ClassVar[bool] = True
    type: Literal["graded_scenes"] = "graded_scenes"
    split: Literal["in_domain", "novel_query", "novel_document", "zero_shot"] = "in_domain"
    size: Annotated[int, Range(16)] = 32
    count: Annotated[int, Range(1, MOST_DOCUMENTS)] = 400  # documents
    seed: Seed = 0

    def check_training(self, config: "Config") -> Iterator[str]:
        by_modality = {"image": ("images", ("image",)), "text": ("texts", SCENE_TEXTS)}
        for name, field in config.fields.items():
            label, columns = by_modality.get(field.modality, ("", (field.column,)))
            if field.column not in columns:
                yield (
                    f"config.fields.{name}.column is {field.column!r}; generated judged pairs have "
                    f"{label} in {' and '.join(map(repr, columns))}."
                )

    def build(self) -> "ScenePairs":
        """Returns judged pairs with `query_id`, `document_id`, and `score` from 1 to 100."""
        novel = self.split in ("novel_query", "zero_shot")
        half = int(self.split in ("novel_document", "zero_shot"))
        documents = SceneTable(half, self.size, self.count, self.seed)
        queries = [query for query in _queries(self.seed) if (_share(query.text) < NOVEL) == novel]
        judged = [_judge(query, documents) for query in queries]
        lengths = [len(rows) for rows, _ in judged]
        qrels = Qrels(
            np.repeat(np.arange(len(queries)), lengths).astype(np.int32),
            np.concatenate([rows for rows, _ in judged]).astype(np.int32),
            np.concatenate([scores for _, scores in judged]),
        )
        names = Names(query={"query": "query", "kind": "kind"}, document={"title": "title"})

        def records(table: Table, label: str, key: str, text: str, **more: Any) -> SideRecords:
            keys = {"key": key, "id_column": key, "texts": (text,), **more}
            name = f"{self.split}, {label}"
            return SideRecords(table, np.arange(len(table)), name=name, **keys)

        image = ImageColumn("image")
        return ScenePairs(
            records(_query_table(queries), "queries", "query_id", "query", columns=names.query),
            records(
                documents, "documents", "document_id", "title", columns=names.document, image=image
            ),
            qrels,
            names=names,
            score="score",
            name=f"graded-scenes-{self.split}",
        )

    def runlocal(self) -> "GradedScenes":
        return GradedScenes()


@dataclass(frozen=True)
class Query:
    """A query.

    Attributes:
      number: index of the query, equal in all splits.
      objects: (size or `_ANY`, kind) of one object or two.
      relation: relation of the first object to the second; -1 for one object.
    """

    number: int
    objects: tuple[tuple[int, int], ...]
    relation: int
    text: str


class SceneTable(Table):
    """Scenes of a half (0 or 1) as rows of document_id, title and image, drawn on request."""

    columns = frozenset({"document_id", "title", "image"})

    def __init__(self, half: int, size: int, count: int, seed: int):
        self.name = f"scenes-{'ab'[half]}"
        drawn = 2 * count + 64
        while True:  # drawing more scenes does not change the first ones
            scenes = SceneRecords("train", size=size, count=drawn, seed=seed)
            rows = np.flatnonzero(_half_of_pairs()[*scenes.objects[:, :2].T] == half)[:count]
            if len(rows) == count:
                break
            drawn *= 2
        self._scenes, self._rows = scenes, rows
        self.objects = scenes.objects[rows]  # [count, 5]

    def __len__(self) -> int:
        return len(self._rows)

    def place(self, index: int) -> str:
        return f"{self.name}, scene {index}"

    @functools.cached_property
    def fingerprint(self) -> str:
        return digest_of([self.name, self.objects])

    def named(self) -> np.ndarray:
        """Returns the object that each title names: int64 [n], 0 or 1."""
        return self._rows % 2

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        scene = int(self._rows[index])
        which = int(self.named()[index])
        first, second, *sizes, _ = self.objects[index].tolist()
        row: Record = {
            "document_id": f"{self.name}-{index:06d}",
            "title": f"a {_words(sizes[which], (first, second)[which])}",
        }
        if columns is None or "image" in columns:
            row["image"] = self._scenes[scene]["image"]
        return row


class ScenePairs(GradedPairs):
    """Judged pairs whose records also have `negatives`: other titles of worse documents.

    These documents were judged for the same query and score at most half as much.
    """

    def __getitem__(self, index: int) -> Record:
        record = super().__getitem__(index)
        query, score = self.qrels.query[index], self.qrels.score[index]
        documents, scores = (rows[0] for rows in self.qrels.for_queries(np.array([query])))
        worse = documents[(documents >= 0) & (scores <= score / 2)].tolist()
        titles = dict.fromkeys(self.documents.value(row, "title") for row in worse)
        return {**record, "negatives": [x for x in titles if x != record["title"]]}


def most_judged(documents: int) -> int:
    """Returns the maximum number of judged documents per query; it grows with all documents."""
    return max(MOST, MOST * documents // 400)


def _queries(seed: int) -> list[Query]:
    """Returns all queries of all splits: every kind in every size, and pairs of objects."""
    single = [(size, kind) for size in (_ANY, 0, 1) for kind in range(KINDS)]
    queries: list[tuple[tuple[tuple[int, int], ...], int, str]]
    queries = [((query_object,), -1, _words(*query_object)) for query_object in single]
    for first, second, *_, relation in SceneRecords("train", count=TWO, seed=seed).objects.tolist():
        text = f"{_words(_ANY, first)} {RELATIONS[relation]} a {_words(_ANY, second)}"
        queries.append((((_ANY, first), (_ANY, second)), relation, text))
    by_text = {query[-1]: query for query in queries}
    return [Query(index, *query) for index, query in enumerate(by_text.values())]


def _query_table(queries: list[Query]) -> Rows:
    kinds = ("object", "relation")
    rows = [
        {"query_id": f"q{x.number:04d}", "query": x.text, "kind": kinds[len(x.objects) - 1]}
        for x in queries
    ]
    return Rows(rows, "queries")


def _judge(query: Query, documents: SceneTable) -> tuple[np.ndarray, np.ndarray]:
    """Returns the judged documents of a query, int64 [n], and their scores, float64 [n].

    These are the documents with a fit above 0.5 and `OTHERS` further documents: at least `LEAST`,
    at most `most_judged`. The query's index seeds the choice of further documents and the order of
    equal scores.
    """
    fits = np.stack([_fit(x, documents.objects) for x in query.objects])  # [1 or 2, n, 2]
    title = fits[:, np.arange(len(documents)), documents.named()].max(0)  # [n]
    if len(query.objects) == 1:
        image = fits[0].max(1)  # [n]
    else:
        relation = documents.objects[:, 4]  # of the first object to the second, [n]
        straight = (fits[0, :, 0] + fits[1, :, 1]) * np.where(relation == query.relation, 1, 0.8)
        turned = relation ^ 1 == query.relation
        crossed = (fits[0, :, 1] + fits[1, :, 0]) * np.where(turned, 1, 0.8)
        image = np.maximum(straight, crossed) / 2
    fit = _IMAGE * image + (1 - _IMAGE) * title  # [n]
    score = np.rint(1 + 99 * fit**2)  # [n]
    draw = np.random.default_rng(query.number).random(len(documents))
    best = np.lexsort((draw, -score))
    limit = most_judged(len(documents))
    count = int(np.clip((fit > 0.5).sum(), LEAST - OTHERS, limit - OTHERS))
    remaining = best[count:]
    more = remaining[np.argsort(draw[remaining])][:OTHERS]
    rows = np.sort(np.concatenate([best[:count], more]))
    return rows, score[rows]


def _fit(query_object: tuple[int, int], objects: np.ndarray) -> np.ndarray:
    """Returns the share of an object's words that are true of a scene's objects: float64 [n, 2]."""
    size, kind = query_object
    kinds, sizes = objects[:, :2], objects[:, 2:4]  # [n, 2]
    colour = kinds % len(COLOURS) == kind % len(COLOURS)
    shape = kinds // len(COLOURS) == kind // len(COLOURS)
    if size == _ANY:
        return (colour * 1.0 + shape) / 2
    return (2.0 * colour + 2.0 * shape + (sizes == size)) / 5


def _words(size: int, kind: int) -> str:
    named = "" if size == _ANY else f"{SIZES[size]} "
    return f"{named}{COLOURS[kind % len(COLOURS)]} {SHAPES[kind // len(COLOURS)]}"


def _share(text: str) -> float:
    """Returns a pseudo-random number from 0 to 1 that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(f"graded:{text}".encode()).digest()[:8], "big") / 2**64


@functools.cache
def _half_of_pairs() -> np.ndarray:
    """Returns the half of each pair of kinds, in any order: int64 [kinds, kinds]."""
    halves = np.zeros((KINDS, KINDS), np.int64)
    for first in range(KINDS):
        for second in range(first, KINDS):
            half = int(_share(f"{first}:{second}") < 0.5)
            halves[first, second] = halves[second, first] = half
    return halves
