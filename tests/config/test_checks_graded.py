"""Checks of judged pairs."""

import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.config.checks import check
from tests.helpers import in_process, tiny, user_error

OWN = configs.Graded(path="pairs.csv", image="image_local")


def data(source=OWN, **changes):
    """The change that sets `config.data`, and fields that read it."""
    fields = {"fields__text__column": "query"}
    return {"data": recipe.entry(source, **changes), **fields}


SCENES = configs.GradedScenes()


def test_check_accepts_judged_pairs():
    check(tiny(**data()))
    check(tiny(**data(SCENES)))
    check(tiny(**data(queries="q.jsonl", documents="d.jsonl", where_documents=("corpus=A",))))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        (data(path=""), "config.data.path is empty"),
        (data(query=""), "config.data.query is empty"),
        (data(score="query_id"), "config.data.score 'query_id'"),
        (data(s_max=0.0), "config.data.s_max is 0.0"),
        (data(text=()), "config.data.text is empty"),
        (data(where=("split",)), "config.data.where has 'split'"),
        (data(documents="d", where_documents=("=A",)), "config.data.where_documents has '=A'"),
        (data(where_documents=("a=b",)), "config.data.where_documents"),
        (data(query_key="id"), "config.data.query_key is set, but config.data.queries is empty"),
        (data(document_key="id"), "config.data.document_key"),
        (data(image="", images="i.npz"), "config.data.images is set"),
        (data(images="i.npz", image_key=""), "config.data.image_key is empty"),
        (data(image=""), "config.data.image is empty"),
        (data() | {"fields__image__column": "x"}, "config.fields.image.column is 'x'"),
        (data(SCENES, size=8), "config.data.size is 8"),
        (data(SCENES) | {"fields__text__column": "captions"}, "config.fields.text.column"),
    ],
)
def test_check_rejects_judged_pairs(changes, key):
    with user_error(key):
        check(tiny(**changes))


@pytest.mark.slow
def test_data_commands_read_judged_pairs_and_reject_conversion(tmp_path):
    own = ("--config=configs/quickstart.py:runlocal", "--config.data.type=graded_scenes")
    own += ("--config.data.split=in_domain", "--config.data.count=60")
    own += ("--config.fields.text.column=query",)
    for word, flags, code, message in (
        ("inspect", (), 0, "  scores    1 to 100"),
        ("convert", (f"--out={tmp_path}",), 2, "cannot hold judged pairs"),
    ):
        out = in_process("data", word, *own, *flags)
        assert (out.returncode, "Traceback" in out.stderr) == (code, False), out.stderr
        assert message in out.stdout + out.stderr
