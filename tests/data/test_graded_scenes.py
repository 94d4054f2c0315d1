"""Generated judged pairs: disjoint splits, and scores that follow from the scenes."""

import pickle

import numpy as np
import pytest

from big_retrieval import config
from big_retrieval.data.build import make_source
from big_retrieval.data.judged.four_way import SPLITS
from big_retrieval.data.synthetic.graded_scenes import (
    LEAST,
    MOST,
    GradedScenes,
    SceneTable,
    _words,
)
from big_retrieval.data.synthetic.scenes import RELATIONS


@pytest.fixture(scope="module")
def splits():
    return {split: GradedScenes(split=split).build() for split in SPLITS}


def queries(source):
    return {source.queries.texts(i, "query")[0] for i in range(len(source.queries))}


def scenes(source):
    """Returns the pairs of kinds in the documents."""
    return {tuple(sorted(each[:2])) for each in source.documents.file._table.objects.tolist()}


def test_splits_are_disjoint_as_they_are_named(splits):
    known, novel, second, both = (splits[name] for name in SPLITS)
    assert queries(known) == queries(second)
    assert queries(novel) == queries(both)
    assert not queries(known) & queries(novel)
    assert 0.1 < len(queries(novel)) / len(queries(known) | queries(novel)) < 0.3
    assert scenes(known) == scenes(novel)
    assert scenes(second) == scenes(both)
    assert not scenes(known) & scenes(second)
    for source in splits.values():
        assert any(word in text for text in queries(source) for word in RELATIONS)


def test_qrels_are_graded_and_within_their_limits(splits):
    for source in splits.values():
        counts, score = source.qrels.counts(), source.qrels.score
        assert len(counts) == len(source.queries)
        assert LEAST <= counts.min() <= counts.max() <= MOST
        assert 1 <= score.min() <= 20
        assert score.max() == 100
        assert len(np.unique(score)) > 8
        assert len(source.documents) == 400


def words(source, document):
    """Returns the names of both objects of a scene, their relation, and the title."""
    first, second, *sizes, relation = source.documents.file._table.objects[document].tolist()
    names = _words(sizes[0], first), _words(sizes[1], second)
    return names, RELATIONS[relation], source.documents.texts(document, "title")[0]


def test_best_score_needs_all_words_of_the_query(splits):
    source = splits["in_domain"]
    seen = 0
    for index in np.flatnonzero(source.qrels.score == 100).tolist():
        record = source[index]
        names, relation, title = words(source, int(source.qrels.document[index]))
        if record["kind"] == "object":
            assert any(record["query"] in name for name in names)
            assert record["query"] in title
            continue
        if relation in record["query"]:
            first, second = record["query"].split(f" {relation} a ")
        else:
            second, first = record["query"].split(f" {opposite(relation)} a ")
        assert first in names[0]
        assert second in names[1]
        seen += 1
    assert seen > 5


def opposite(relation):
    return RELATIONS[RELATIONS.index(relation) ^ 1]


def test_exact_scenes_are_judged_first(splits):
    source = splits["zero_shot"]
    for query in range(len(source.queries)):
        text = source.queries.texts(query, "query")[0]
        if any(word in text for word in RELATIONS):
            continue
        judged = source.qrels.query == query
        here = set(source.qrels.document[judged].tolist())
        exact = {i for i in range(len(source.documents)) if text in words(source, i)[2]}
        assert exact <= here or len(here) == MOST


def test_scenes_depend_on_their_arguments_alone(splits):
    source = splits["novel_query"]
    again = pickle.loads(pickle.dumps(GradedScenes(split="novel_query").build()))
    for index in (0, 7, len(source) - 1):
        a, b = source[index], again[index]
        np.testing.assert_array_equal(a.pop("image"), b.pop("image"))
        assert a == b
        names = {"query_id", "document_id", "score", "query", "kind", "title", "id", "negatives"}
        assert set(a) == names
    small, other = SceneTable(0, 16, 20, 0), SceneTable(0, 16, 20, 1)
    np.testing.assert_array_equal(small.objects, source.documents.file._table.objects[:20])
    assert (small.objects != other.objects).any()
    assert source.documents[3]["image"].shape == (32, 32, 3)
    assert list(source.captions())[: len(source.queries)] == [
        source.queries.texts(i, "query")[0] for i in range(len(source.queries))
    ]


def test_more_documents_are_judged_in_proportion():
    large = GradedScenes(split="in_domain", size=16, count=2000).build()
    counts, score = large.qrels.counts(), large.qrels.score
    assert MOST < counts.max() <= 5 * MOST
    assert (score == 100).mean() < 0.3
    assert large[0]["document_id"].startswith("scenes-a-")


def test_few_documents_are_all_judged():
    tiny = make_source(config.GradedScenes(count=3, size=16))
    assert len(tiny.documents) == 3
    assert (tiny.qrels.counts() == 3).all()
