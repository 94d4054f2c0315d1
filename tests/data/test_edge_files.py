"""Files that are none, endless, enormous, cut short or exchanged: a sentence each, and no hang."""

import io
import json
import os
import socket
from pathlib import Path

import numpy as np
import pytest

from big_retrieval import config
from big_retrieval.data import in_memory
from big_retrieval.data.build import make_source
from big_retrieval.data.fields.labels import read_labels
from big_retrieval.data.formats import open_files
from big_retrieval.data.formats.columns import scan
from big_retrieval.data.formats.records import load_image
from big_retrieval.data.images import limits
from big_retrieval.data.judged.qrels import check_scores
from big_retrieval.data.stores.ingest import open_store
from big_retrieval.data.stores.json_files import json_qrels_reader
from big_retrieval.data.stores.tar import TAR
from big_retrieval.data.text.tokenizers import load_tokenizer
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals.class_names import read_names
from big_retrieval.evals.rankings import read_values
from big_retrieval.evals.trec import read_qrels, read_run
from big_retrieval.interop.files import read_arrays, read_json
from big_retrieval.io.regular import check_regular, read_bytes
from big_retrieval.retrieval import documents
from tests.data.files import red, write_tar


@pytest.fixture
def odd(tmp_path):
    """Name -> path of what is no regular file."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as heard:
        here = os.getcwd()
        os.chdir(tmp_path)  # names of sockets are short
        heard.bind("socket.jsonl")
        os.chdir(here)
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "linked.jsonl").symlink_to("/dev/zero")
    return {
        "a named pipe": tmp_path / "pipe.jsonl",
        "a socket": tmp_path / "socket.jsonl",
        "a folder": tmp_path / "folder.jsonl",
        "a device": tmp_path / "linked.jsonl",
    }


def test_read_bytes_rejects_irregular_files(odd, tmp_path):
    for what, path in odd.items():
        with pytest.raises(UserError, match=f"is {what}, not a regular file"):
            read_bytes(path)
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert read_bytes(tmp_path / "link") == b"abc"
    assert check_regular(tmp_path, folders=True)
    with pytest.raises(UserError, match="The limit of such files is 0 MiB"):
        read_bytes(tmp_path / "file", 2)


@pytest.mark.parametrize("what", ["a named pipe", "a socket", "a folder", "a device"])
def test_load_image_counts_irregular_file_as_damage(odd, what):
    with pytest.raises(Damaged, match=f"line 1: the image .* cannot be read under .* is {what}"):
        load_image(odd[what].name, odd[what].parent, "pairs.jsonl, line 1")


def test_load_image_rejects_huge_file_unread(tmp_path):
    with (tmp_path / "huge.png").open("wb") as file:
        file.truncate(limits.MOST_FILE + 1)
    with pytest.raises(Damaged, match=r"huge.png .*has 256 MiB\. The limit"):
        load_image("huge.png", tmp_path, "here")
    with pytest.raises(UserError, match=r"huge.png .*has 256 MiB\. The limit"):
        in_memory.read_image(tmp_path / "huge.png")


@pytest.mark.parametrize("what", ["a named pipe", "a socket", "a device"])
def test_tables_reject_irregular_files(odd, what):
    path = odd[what]
    for read in (
        lambda: make_source(config.Pairs(path=str(path))),
        lambda: make_source(config.Tar(path=str(path))),
        lambda: open_files.file_table(path),
    ):
        with pytest.raises(UserError, match=f"is {what}"):
            read()


def test_readers_reject_pipes(odd):
    pipe = odd["a named pipe"]
    reader = documents.DocumentReader("documents", {"text": ["text"]}, from_config=True)
    for read in (
        lambda: documents.open_records("documents", str(pipe), reader),
        lambda: read_run(pipe),
        lambda: read_json(pipe),
        lambda: read_names(str(pipe), "config.x"),
        lambda: load_tokenizer("wordpiece", str(pipe)),
        lambda: in_memory.read_image(pipe),
        lambda: read_values(pipe),
        lambda: read_qrels(pipe),
        lambda: json_qrels_reader(pipe, "query", "document", "score"),
    ):
        with pytest.raises(UserError, match="a named pipe"):
            read()


def npz(**arrays) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9, 0.99])
def test_npz_rejects_truncated_file(tmp_path, kept):
    path = tmp_path / "a.npz"
    data = npz(a=np.arange(3000), b=np.arange(3000) % 7)
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(UserError, match=r"Cannot read .*a.npz as .npz file"):
        open_files.file_table(path)
    with pytest.raises(UserError, match=r"Cannot read .*a.npz as .npz file"):
        read_arrays(path)


HUGE = ["1" + "0" * 400, "1e400", "-1e400"]


@pytest.mark.parametrize("text", [*HUGE, "NaN"])
def test_read_labels_rejects_infinite_score(text):
    row = json.loads(f'{{"score": {text}}}')
    with pytest.raises(Damaged, match="here: the score 'score' is"):
        read_labels(row, config.PairLabels(score="score", s_max=5.0), "here")


@pytest.mark.parametrize("text", HUGE)
def test_check_scores_names_infinite_score(tmp_path, text):
    path = tmp_path / "scores.jsonl"
    path.write_text('{"score": 1}\n' + f'{{"score": {text}}}\n')

    table = open_files.file_table(path)
    with pytest.raises(UserError, match=r"scores.jsonl, line 2: 'score' is"):
        check_scores(scan(table, (), ("score",)).numbers["score"], "score", table.place)


def write_words(path: Path, words: list[str]) -> None:
    contents = [(word, (("txt", word.encode()), ("png", red(n)))) for n, word in enumerate(words)]
    write_tar(path, [(f"{word}.{ending}", data) for word, own in contents for ending, data in own])
    os.utime(path, (1e9, 1e9))


def test_tar_with_equal_size_and_time_is_read_again(tmp_path):
    path = tmp_path / "a.tar"
    write_words(path, ["aaaa", "bbb", "cc"])
    assert open_files.file_table(path).row(0)["txt"] == "aaaa"
    size = path.stat().st_size
    write_words(path, ["xx", "yyy", "zzzz"])
    assert path.stat().st_size == size
    store = open_store([path], TAR)
    assert [store.row(index)["txt"] for index in range(3)] == ["xx", "yyy", "zzzz"]


def test_tar_exchanged_after_reading_is_damage(tmp_path):
    path = tmp_path / "a.tar"
    write_words(path, ["aaaa", "bbb", "cc"])
    store = open_store([path], TAR)
    assert store.row(0)["png"].startswith(b"\x89PNG")
    other = tmp_path / "other.tar"
    write_words(other, ["xx", "yyy", "zzzz"])
    path.write_bytes(other.read_bytes())  # in place, as rsync --inplace does
    os.utime(path, ns=(0, 0))
    with pytest.raises((Damaged, UserError), match=r"a.tar (is not the file|was changed)"):
        store.row(0)


def test_tar_rejects_names_with_several_dots(tmp_path):
    write_words(tmp_path / "a.tar", [f"take (v1.{n}) of all" for n in range(70)])
    with pytest.raises(UserError, match=r"have several dots, such as .take .*rename the files"):
        open_store([tmp_path / "a.tar"], TAR)


def test_tar_with_odd_names_loses_one_sample(tmp_path):
    members = [("0.json", b'{"\\ud83d": 1}'), ("1.json", b'{"a": 1}'), ("1.\udce9", b"x")]
    write_tar(tmp_path / "a.tar", members)
    store = open_store([tmp_path / "a.tar"], TAR)
    assert (len(store), store.row(1)["json:a"], store.row(1)["?"]) == (2, 1, b"x")
    with pytest.raises(Damaged, match=r"a\.tar, sample '0': its JSON is not JSON"):
        store.row(0)
