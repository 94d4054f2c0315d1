"""Generated judged pairs: queries such as "red circle" and scenes with titles.

A document is a scene (`scenes.SceneRecords`) with a title that names one of its two objects, so
that neither the image nor the title says all. Queries name an object ("red circle", "big red
circle") or two in relation ("red circle left of a blue square"). How well they fit, f, is the share
of the query's words (size, colour, shape, relation) that hold: three quarters of it for the image,
one quarter for the title. The score is 1 + 99 f^2, rounded: 100 where all holds of both.

Scenes are in one of two halves by a hash of their pair of kinds, queries are known or novel by a
hash of their text:

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
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from big_retrieval.config.registry import register
from big_retrieval.config.sources import Source, check_drawn
from big_retrieval.data.formats.tables import Rows, Table
from big_retrieval.data.judged.graded import GradedPairs, Names, SideRecords
from big_retrieval.data.judged.images import ImageColumn
from big_retrieval.data.judged.qrels import Qrels
from big_retrieval.data.sources import Record
from big_retrieval.data.synthetic.scenes import COLOURS, RELATIONS, SHAPES, SIZES, SceneRecords

if TYPE_CHECKING:
    from big_retrieval.config.run import Config

MOST_DOCUMENTS = 1_000_000  # every query is compared with all of them at the start
SCENE_TEXTS = ("query", "title")
SPLITS = ("in_domain", "novel_query", "novel_document", "zero_shot")
LEAST, MOST = 10, 30  # judged documents of a query, of 400; MOST grows with their number
OTHERS = 4  # of these, whatever they show
NOVEL = 0.2  # share of the queries
TWO = 100  # queries that name two objects, at most
_IMAGE = 0.75  # share of the score
_ANY = -1  # a size that the query does not name
_KINDS = len(SHAPES) * len(COLOURS)  # kind = shape * len(COLOURS) + colour, as in scenes


@register("source")
@dataclass(frozen=True)
class GradedScenes(Source):
    """Generated judged pairs: queries such as "red circle" and scenes with images and titles."""

    generated: ClassVar[bool] = True
    graded: ClassVar[bool] = True
    type: Literal["graded_scenes"] = "graded_scenes"
    split: Literal["in_domain", "novel_query", "novel_document", "zero_shot"] = "in_domain"
    size: int = 32
    count: int = 400  # documents
    seed: int = 0

    def check(self, path: str) -> Iterator[str]:
        yield from check_drawn(self, path, MOST_DOCUMENTS)

    def check_training(self, config: "Config") -> Iterator[str]:
        known = {"image": ("images", ("image",)), "text": ("texts", SCENE_TEXTS)}
        for name, each in config.fields.items():
            words, columns = known.get(each.modality, ("", (each.column,)))
            if each.column not in columns:
                yield (
                    f"config.fields.{name}.column is {each.column!r}; generated judged pairs have "
                    f"{words} in {' and '.join(map(repr, columns))}."
                )

    def build(self) -> "ScenePairs":
        """Judged pairs with ids `query_id` and `document_id`, and `score` from 1 to 100."""
        novel = self.split in ("novel_query", "zero_shot")
        half = int(self.split in ("novel_document", "zero_shot"))
        documents = SceneTable(half, self.size, self.count, self.seed)
        asked = [query for query in _queries(self.seed) if (_share(query.text) < NOVEL) == novel]
        judged = [_judge(query, documents) for query in asked]
        lengths = [len(found) for found, _ in judged]
        found = Qrels(
            np.repeat(np.arange(len(asked)), lengths).astype(np.int32),
            np.concatenate([numbers for numbers, _ in judged]).astype(np.int32),
            np.concatenate([scores for _, scores in judged]),
        )
        queries = _query_table(asked)
        names = Names(query={"query": "query", "kind": "kind"}, document={"title": "title"})
        return ScenePairs(
            SideRecords(
                queries,
                np.arange(len(queries)),
                key="query_id",
                id_column="query_id",
                columns=names.query,
                texts=("query",),
                name=f"{self.split}, queries",
            ),
            SideRecords(
                documents,
                np.arange(len(documents)),
                key="document_id",
                id_column="document_id",
                columns=names.document,
                texts=("title",),
                image=ImageColumn("image"),
                name=f"{self.split}, documents",
            ),
            found,
            names=names,
            score="score",
            name=f"graded-scenes-{self.split}",
        )

    def runlocal(self) -> "GradedScenes":
        return GradedScenes()


@dataclass(frozen=True)
class Query:
    """What is asked for.

    Attributes:
      number: of the query, the same in all splits.
      objects: (size or `_ANY`, kind) of one object or two.
      relation: of the first one to the second; -1 where there is one.
      text: the same in words.
    """

    number: int
    objects: tuple[tuple[int, int], ...]
    relation: int
    text: str


class SceneTable(Table):
    """Scenes as rows of document_id, title and image; drawn when they are asked for.

    Args:
      half: 0 or 1, by the pair of kinds.
      size: side of the images in pixels.
      count: how many.
      seed: of the scenes.
    """

    columns = frozenset({"document_id", "title", "image"})

    def __init__(self, half: int, size: int, count: int, seed: int):
        self.name = f"scenes-{'ab'[half]}"
        wanted = 2 * count + 64
        while True:  # more scenes leave the first ones as they are
            scenes = SceneRecords("train", size=size, count=wanted, seed=seed)
            chosen = np.flatnonzero(_half_of_pairs()[*scenes.objects[:, :2].T] == half)[:count]
            if len(chosen) == count:
                break
            wanted *= 2
        self._scenes, self._rows = scenes, chosen
        self.objects = scenes.objects[chosen]  # [count, 5]

    def __len__(self) -> int:
        return len(self._rows)

    def place(self, index: int) -> str:
        """The table and the number of the scene, from 0."""
        return f"{self.name}, scene {index}"

    def named(self) -> np.ndarray:
        """Which of its two objects a title names: int64 [n], 0 or 1."""
        return self._rows % 2

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """A scene; its image is drawn only if it is asked for."""
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
    """Judged pairs whose records also have `negatives`: titles of worse documents.

    These are of documents that were judged for the same query and score at most half as much, each
    title once and never the pair's own.
    """

    def __getitem__(self, index: int) -> Record:
        record = super().__getitem__(index)
        query, score = self.qrels.query[index], self.qrels.score[index]
        documents, scores = (found[0] for found in self.qrels.of(np.array([query])))
        worse = documents[(documents >= 0) & (scores <= score / 2)].tolist()
        titles = dict.fromkeys(self.documents.value(each, "title") for each in worse)
        return {**record, "negatives": [x for x in titles if x != record["title"]]}


def most_judged(documents: int) -> int:
    """How many documents of a query are judged at most, so that few that fit are left out."""
    return max(MOST, MOST * documents // 400)


def _queries(seed: int) -> list[Query]:
    """All queries of all splits: every kind, in every size, and pairs of objects of scenes."""
    asked = [(size, kind) for size in (_ANY, 0, 1) for kind in range(_KINDS)]
    found: list[tuple[tuple[tuple[int, int], ...], int, str]]
    found = [((each,), -1, _words(*each)) for each in asked]
    for first, second, *_, relation in SceneRecords("train", count=TWO, seed=seed).objects.tolist():
        text = f"{_words(_ANY, first)} {RELATIONS[relation]} a {_words(_ANY, second)}"
        found.append((((_ANY, first), (_ANY, second)), relation, text))
    once = {text: (objects, relation, text) for objects, relation, text in found}
    return [Query(number, *each) for number, each in enumerate(once.values())]


def _query_table(queries: list[Query]) -> Rows:
    kinds = ("object", "relation")
    rows = [
        {"query_id": f"q{x.number:04d}", "query": x.text, "kind": kinds[len(x.objects) - 1]}
        for x in queries
    ]
    return Rows(rows, "queries")


def _judge(query: Query, documents: SceneTable) -> tuple[np.ndarray, np.ndarray]:
    """The documents that are judged for a query, int64 [n], and their scores, float64 [n].

    The best ones, all that fit by more than half, and `OTHERS` of the rest; together at least
    `LEAST` and at most `most_judged`. Which of equally good ones, and which others, is drawn by the
    query's number.
    """
    fits = np.stack([_fit(each, documents.objects) for each in query.objects])  # [1 or 2, n, 2]
    rows = np.arange(len(documents))
    title = fits[:, rows, documents.named()].max(0)  # [n]
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
    most = most_judged(len(documents))
    count = int(np.clip((fit > 0.5).sum(), LEAST - OTHERS, most - OTHERS))
    rest = best[count:]
    others = rest[np.argsort(draw[rest])][:OTHERS]
    chosen = np.sort(np.concatenate([best[:count], others]))
    return chosen, score[chosen]


def _fit(wanted: tuple[int, int], objects: np.ndarray) -> np.ndarray:
    """The share of the words for an object that hold of each of a scene's: float64 [n, 2]."""
    size, kind = wanted
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
    """A number from 0 to 1 that looks drawn, the same for the same text."""
    return int.from_bytes(hashlib.sha256(f"graded:{text}".encode()).digest()[:8], "big") / 2**64


@functools.cache
def _half_of_pairs() -> np.ndarray:
    """The half of each pair of kinds, whatever their order: int64 [kinds, kinds]."""
    halves = np.zeros((_KINDS, _KINDS), np.int64)
    for first in range(_KINDS):
        for second in range(first, _KINDS):
            half = int(_share(f"{first}:{second}") < 0.5)
            halves[first, second] = halves[second, first] = half
    return halves
