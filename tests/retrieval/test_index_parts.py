"""An index that several processes build is byte for byte what one process builds."""

import dataclasses
import json
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from big_retrieval.data.stores.writer import StoreWriter
from big_retrieval.errors import UserError
from big_retrieval.io import manifest
from big_retrieval.retrieval import dense, inverted, making
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.folder import About
from big_retrieval.retrieval.index_options import IndexOptions
from big_retrieval.retrieval.parts import IndexPart, join, make_part
from tests.helpers import command, in_process, lexical_texts, start
from tests.retrieval.index_cases import random_rows
from tests.retrieval.test_search_commands import save

CUTS = (0, 40, 41, 90)  # where three parts of 90 documents begin and end


def contents(folder: Path) -> dict[str, bytes]:
    """Name -> content of the files of an index."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write(out: Path, found: Any, names: Sequence[str], about: About, memory: int = 2**11) -> None:
    """An index of embeddings with ids, texts, and a note of what it was made from."""
    partial = folders.begin(out)
    (partial / folders.ORIGIN).write_bytes(manifest.to_json({"model": "m"}))
    with StoreWriter(partial, "document") as store:
        store.append({"row": int(name[1:]), "id": name} for name in names)
    batches = [found[start : start + 7] for start in range(0, len(names), 7)]
    if about.kind == "dense":
        about = dense.build(partial, batches, about)
    else:
        about = inverted.build(partial, batches, about, memory=memory)
    folders.finish(partial, out, about)


def joined(tmp_path: Path, found: Any, names: Sequence[str], about: About) -> Path:
    """The index of three parts of some embeddings."""
    out = tmp_path / "joined"
    part = IndexPart(1, 3)
    for each, first, last in zip(part.all(), CUTS, CUTS[1:], strict=False):
        write(each.folder(out), found[first:last], names[first:last], about, memory=2**20)
    join(IndexOptions(tmp_path, "", out, memory=2**-10), part)
    return out


@pytest.mark.parametrize("kind", ["float32", "float16", "binary", "dense"])
def test_parts_are_joined_to_what_one_process_writes(tmp_path: Path, kind: str) -> None:
    names = [f"ä{number}" for number in range(90)]
    if kind == "dense":
        found: Any = np.random.default_rng(0).standard_normal((90, 2, 3)).astype(np.float32)
        about = About(kind="dense", topology="oblique")
    else:
        found = random_rows(90, 30, 0.3, 0).tolil()
        found[40] = 0  # the only document of the second part
        found = sparse.csr_array(found)
        found.data[:] = 1 if kind == "binary" else found.data
        about = About(kind="inverted", terms=30, values=kind)
    write(tmp_path / "whole", found, names, about)
    out = joined(tmp_path, found, names, about)
    assert contents(out) == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["joined", "whole"]


def test_an_id_in_two_parts_is_an_error_and_leaves_the_parts(tmp_path: Path) -> None:
    names = [f"d{number}" for number in range(89)] + ["d3"]
    with pytest.raises(UserError, match="Documents 3 and 89 have the id 'd3'"):
        joined(tmp_path, random_rows(90, 5, 0.3, 0), names, About(kind="inverted", terms=5))
    assert [path.name for path in tmp_path.iterdir()] == ["joined.parts"]
    assert len(list((tmp_path / "joined.parts").iterdir())) == 3


@pytest.mark.parametrize("records", [8, 9, 100, 1024])
def test_parts_are_whole_blocks_and_leave_no_record_out(records: int) -> None:
    for of in range(1, -(-records // 4) + 1):
        spans = [part.span(records, 4) for part in IndexPart(1, of).all()]
        assert [number for span in spans for number in span] == list(range(records))
        assert all(len(span) and span.start % 4 == 0 for span in spans)
    with pytest.raises(UserError, match=r"--part=2/\d+: .* allow at most \d+ parts"):
        IndexPart(2, -(-records // 4) + 1).span(records, 4)


def test_a_part_that_is_none() -> None:
    for text in ("2", "0/4", "5/4", "2/4/", "-1/4", "a/b"):
        with pytest.raises(UserError, match=r"--part is .*like 2/4"):
            IndexPart.parse(text)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and 30 documents, two of which are damaged."""
    place = tmp_path_factory.mktemp("parts")
    save(place / "model", **lexical_texts())
    lines = [json.dumps({"id": f"d{n}", "captions": f"a red circle {n}"}) for n in range(28)]
    lines[5:5] = ["{", '{"id": "x", "captions": []}']
    (place / "documents.jsonl").write_text("\n".join(lines))
    return place


@pytest.fixture
def options(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IndexOptions:
    """Bags of words, which no model encodes, in blocks of 8 records."""
    monkeypatch.setattr("big_retrieval.retrieval.preparing.TEXTS", 8)
    out = tmp_path / "index"
    return IndexOptions(place / "model", str(place / "documents.jsonl"), out, binary=True)


def test_a_part_that_is_there_is_not_made_again(
    options: IndexOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = IndexPart(1, 3).all()
    assert make_part(options, two) == [one, three]
    assert make_part(options, one) == [three]
    with monkeypatch.context() as patch:
        patch.setattr(making, "write", None)
        assert make_part(options, two) == [three]
    damaged = one.folder(options.out) / "documents.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert make_part(options, three) == []
    with pytest.raises(UserError, match=r"documents.npy has .*. Build it by --part=1/3"):
        join(options, three)
    assert make_part(options, one) == []
    folders.begin(options.out)  # what a process leaves that was killed while it joined
    join(options, one)
    assert make_part(options, two) == []  # though its folder has been removed
    join(options, two)
    whole = making.make(dataclasses.replace(options, out=tmp_path / "whole"))
    assert contents(options.out) == contents(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "whole"]


def test_parts_of_something_else_are_refused(options: IndexOptions, tmp_path: Path) -> None:
    part = IndexPart(2, 3)
    assert len(make_part(options, IndexPart(1, 3))) == 2
    documents = tmp_path / "documents.jsonl"
    shutil.copy(options.data, documents)
    elsewhere = dataclasses.replace(options, data=str(documents))
    assert make_part(elsewhere, part) == [IndexPart(3, 3)]  # the same ones at another path
    shutil.rmtree(part.folder(options.out))
    documents.write_bytes(documents.read_bytes().replace(b"circle 7", b"square 7"))
    model = tmp_path / "model"
    shutil.copytree(options.run, model)
    (model / "checkpoints" / "0" / "meta.json").write_text("{}")
    manifest.write_manifest(model / "checkpoints" / "0")
    for changes, words in (
        ({"data": str(documents)}, "1-of-3 was built with other documents"),
        ({"run": model}, "1-of-3 was built with another model or checkpoint"),
        ({"binary": False, "text": ("captions",)}, "built with another --text, another --binary"),
        ({"format": "csr", "binary": False}, "--format=csr is written by one process"),
    ):
        with pytest.raises(UserError, match=words):
            make_part(dataclasses.replace(options, **changes), part)
    with pytest.raises(UserError, match=r"1-of-3 is one of 3 parts, but --part is 2/4"):
        make_part(options, IndexPart(2, 4))
    assert not part.folder(options.out).exists()


def test_the_command_names_the_parts_that_are_missing(options: IndexOptions) -> None:
    flags = ["index", f"--run={options.run}", f"--data={options.data}", "--binary"]
    first = in_process(*flags, "--part=2/3", f"--out={options.out}")
    assert first.returncode == 0, first.stderr
    assert f"missing parts of {options.out}: 1/3, 3/3; the last one" in first.stdout
    assert "repeat this command with --part=1/3\n" in first.stdout
    for part, words in (("1/3", ": 3/3; the last"), ("3/3", "28 documents, "), ("1/3", "already")):
        done = in_process(*flags, f"--out={options.out}", f"--part={part}")
        assert done.returncode == 0, done.stderr
        assert words in done.stdout
    assert [path.name for path in options.out.parent.iterdir()] == ["index"]
    refused = in_process(*flags, "--values=float16", f"--out={options.out}", "--part=1/3")
    assert refused.returncode == 2
    assert "exists and is not empty" in refused.stderr


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lexical", "dense"])
def test_of_two_processes_one_is_killed_and_repeated(tmp_path: Path, kind: str) -> None:
    """The model encodes; the index is that of a single process, byte for byte."""
    changes = lexical_texts() if kind == "lexical" else {}
    save(tmp_path / "model", **changes)
    lines = [json.dumps({"id": f"d{n}", "captions": f"a red circle {n}"}) for n in range(9000)]
    lines[100:100] = ["{"] * 50
    documents = tmp_path / "documents.jsonl"
    documents.write_text("\n".join(lines))
    flags = [f"--run={tmp_path / 'model'}", f"--data={documents}", "--batch_size=32"]
    flags += [] if kind == "lexical" else ["--field=text"]
    out, whole = tmp_path / "index", tmp_path / "whole"

    def index(*more: str) -> Any:
        return start(command("index", *flags, *more))

    first, second = (index(f"--out={out}", f"--part={part}") for part in ("1/2", "2/2"))
    own = IndexPart(2, 2).folder(out)
    begun = own.with_name(own.name + ".partial")
    names = ("tokenizer.json", "embeddings.npy")  # of a lexical index, and of a dense one
    wait_for(lambda: any((begun / name).exists() for name in names))
    second.send_signal(signal.SIGKILL)
    second.communicate()
    said = first.communicate()[0]
    assert first.returncode == 0, said
    assert f"missing parts of {out}: 2/2" in said
    assert not own.exists()
    made = IndexPart(1, 2).folder(out).stat().st_mtime_ns
    again = index(f"--out={out}", "--part=1/2")
    said = again.communicate()[0]
    assert "part 1/2 exists already" in said
    assert IndexPart(1, 2).folder(out).stat().st_mtime_ns == made
    again, single = index(f"--out={out}", "--part=2/2"), index(f"--out={whole}")
    said = again.communicate()[0]
    assert again.returncode == 0, said
    assert "taking over" in said
    assert "9,000 documents" in said
    assert single.communicate()[0]
    assert single.returncode == 0
    assert contents(out) == contents(whole)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["documents.jsonl", "index", "model", "whole"]
