"""An index that several processes build has the bytes of an index by one process."""

import dataclasses
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from big_retrieval.data.stores.writer import StoreWriter
from big_retrieval.io import manifest
from big_retrieval.retrieval import build_index, dense, inverted
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.folder import About
from big_retrieval.retrieval.index_options import IndexOptions
from big_retrieval.retrieval.parts import IndexPart, join_parts, make_part
from tests.helpers import command, in_process, lexical_texts, start, user_error
from tests.retrieval.index_cases import random_rows
from tests.retrieval.test_search_commands import save, write_lines

CUTS = (0, 40, 41, 90)  # first and last documents of three parts


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write(out: Path, rows: Any, names: Sequence[str], about: About, memory: int = 2**11) -> None:
    """Writes an index of embeddings with ids, texts and an origin."""
    partial = folders.begin(out)
    (partial / folders.ORIGIN).write_bytes(manifest.to_json({"model": "m"}))
    with StoreWriter(partial, "document") as store:
        store.append({"row": int(name[1:]), "id": name} for name in names)
    batches = [rows[start : start + 7] for start in range(0, len(names), 7)]
    if about.kind == "dense":
        about = dense.build(partial, batches, about)
    else:
        about = inverted.build(partial, batches, about, memory=memory)
    folders.finish(partial, out, about)


def write_joined(tmp_path: Path, rows: Any, names: Sequence[str], about: About) -> Path:
    """Writes three parts of an index and joins them."""
    out = tmp_path / "joined"
    parts = IndexPart(1, 3).all()
    for part, first, last in zip(parts, CUTS, CUTS[1:], strict=False):
        write(part.folder(out), rows[first:last], names[first:last], about, memory=2**20)
    join_parts(IndexOptions(tmp_path, "", out, memory=2**-10), parts[0])
    return out


@pytest.mark.parametrize("kind", ["float32", "float16", "binary", "dense"])
def test_joined_parts_equal_index_of_one_process(tmp_path: Path, kind: str) -> None:
    names = [f"ä{number}" for number in range(90)]
    if kind == "dense":
        rows: Any = np.random.default_rng(0).standard_normal((90, 2, 3)).astype(np.float32)
        about = About(kind="dense", topology="oblique")
    else:
        rows = random_rows(90, 30, 0.3, 0).tolil()
        rows[40] = 0  # the only document of the second part
        rows = sparse.csr_array(rows)
        rows.data[:] = 1 if kind == "binary" else rows.data
        about = About(kind="inverted", terms=30, values=kind)
    write(tmp_path / "whole", rows, names, about)
    assert contents(write_joined(tmp_path, rows, names, about)) == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["joined", "whole"]


def test_join_rejects_id_of_two_parts_and_keeps_them(tmp_path: Path) -> None:
    names = [f"d{number}" for number in range(89)] + ["d3"]
    with user_error("Documents 3 and 89 have the id 'd3'"):
        write_joined(tmp_path, random_rows(90, 5, 0.3, 0), names, About(kind="inverted", terms=5))
    assert [path.name for path in tmp_path.iterdir()] == ["joined.parts"]
    assert len(list((tmp_path / "joined.parts").iterdir())) == 3


@pytest.mark.parametrize("records", [8, 9, 100, 1024])
def test_parts_are_full_blocks_of_all_records(records: int) -> None:
    for of in range(1, -(-records // 4) + 1):
        spans = [part.span(records, 4) for part in IndexPart(1, of).all()]
        assert [number for span in spans for number in span] == list(range(records))
        assert all(len(span) and span.start % 4 == 0 for span in spans)
    with user_error("--part=2/", "allow at most"):
        IndexPart(2, -(-records // 4) + 1).span(records, 4)


@pytest.mark.parametrize("text", ["2", "0/4", "5/4", "2/4/", "-1/4", "a/b"])
def test_parse_rejects_other_forms(text: str) -> None:
    with user_error("--part is", "like 2/4"):
        IndexPart.parse(text)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and 30 documents, two of which are damaged."""
    place = tmp_path_factory.mktemp("parts")
    save(place / "model", **lexical_texts())
    rows: list[Any] = [{"id": f"d{n}", "captions": f"a red circle {n}"} for n in range(28)]
    rows[5:5] = ["{", {"id": "x", "captions": []}]
    write_lines(place / "documents.jsonl", rows)
    return place


@pytest.fixture
def options(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IndexOptions:
    """Options of an index of bags of words (no model runs) in blocks of 8 records."""
    monkeypatch.setattr("big_retrieval.retrieval.index_work.TEXTS", 8)
    out = tmp_path / "index"
    return IndexOptions(place / "model", str(place / "documents.jsonl"), out, binary=True)


def test_complete_part_is_kept_and_damaged_part_rebuilt(
    options: IndexOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = IndexPart(1, 3).all()
    assert make_part(options, two) == [one, three]
    assert make_part(options, one) == [three]
    with monkeypatch.context() as patch:
        patch.setattr(build_index, "write_index_or_export", None)
        assert make_part(options, two) == [three]
    damaged = one.folder(options.out) / "documents.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert make_part(options, three) == []
    with user_error("documents.npy has", "Add --part=1/3"):
        join_parts(options, three)
    assert make_part(options, one) == []
    folders.begin(options.out)  # as after a process was killed while it joined
    join_parts(options, one)
    assert make_part(options, two) == []  # although its folder was removed
    join_parts(options, two)
    whole = build_index.make(dataclasses.replace(options, out=tmp_path / "whole"))
    assert contents(options.out) == contents(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "whole"]


def test_part_of_another_index_is_rejected(options: IndexOptions, tmp_path: Path) -> None:
    part = IndexPart(2, 3)
    assert len(make_part(options, IndexPart(1, 3))) == 2
    documents = tmp_path / "documents.jsonl"
    shutil.copy(options.data, documents)
    elsewhere = dataclasses.replace(options, data=str(documents))
    assert make_part(elsewhere, part) == [IndexPart(3, 3)]  # equal documents at another path
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
        with user_error(words):
            make_part(dataclasses.replace(options, **changes), part)
    with user_error("1-of-3 is one of 3 parts, but --part is 2/4"):
        make_part(options, IndexPart(2, 4))
    assert not part.folder(options.out).exists()


def test_command_names_missing_parts(options: IndexOptions) -> None:
    flags = ["index", f"--run={options.run}", f"--data={options.data}", "--binary"]
    flags.append(f"--out={options.out}")
    for part, words in (
        ("2/3", f"missing parts of {options.out}: 1/3, 3/3; "),
        ("1/3", ": 3/3; the last"),
        ("3/3", "28 documents, "),
        ("1/3", "already"),
    ):
        done = in_process(*flags, f"--part={part}")
        assert done.returncode == 0, done.stderr
        assert words in done.stdout
    assert [path.name for path in options.out.parent.iterdir()] == ["index"]
    done = in_process(*flags, "--values=float16", "--part=1/3")
    assert done.returncode == 2
    assert "exists and is not empty" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lexical", "dense"])
def test_killed_part_is_repeated(tmp_path: Path, kind: str) -> None:
    save(tmp_path / "model", **(lexical_texts() if kind == "lexical" else {}))
    rows: list[Any] = [{"id": f"d{n}", "captions": f"a red circle {n}"} for n in range(9000)]
    rows[100:100] = ["{"] * 50
    documents = write_lines(tmp_path / "documents.jsonl", rows)
    flags = [f"--run={tmp_path / 'model'}", f"--data={documents}", "--batch_size=32"]
    flags += [] if kind == "lexical" else ["--field=text"]
    out, whole = tmp_path / "index", tmp_path / "whole"

    def index(*more: str) -> Any:
        return start(command("index", *flags, *more))

    first, second = (index(f"--out={out}", f"--part={part}") for part in ("1/2", "2/2"))
    folder = IndexPart(2, 2).folder(out)
    begun = folder.with_name(folder.name + ".partial")
    names = ("tokenizer.json", "embeddings.npy")  # of a lexical and of a dense index
    end = time.monotonic() + 300
    while not any((begun / name).exists() for name in names):
        assert time.monotonic() < end
        time.sleep(0.02)
    second.send_signal(signal.SIGKILL)
    second.communicate()
    output = first.communicate()[0]
    assert first.returncode == 0, output
    assert f"missing parts of {out}: 2/2" in output
    assert not folder.exists()
    written = IndexPart(1, 2).folder(out).stat().st_mtime_ns
    assert "part 1/2 exists already" in index(f"--out={out}", "--part=1/2").communicate()[0]
    assert IndexPart(1, 2).folder(out).stat().st_mtime_ns == written
    again, single = index(f"--out={out}", "--part=2/2"), index(f"--out={whole}")
    output = again.communicate()[0]
    assert again.returncode == 0, output
    assert "taking over" in output
    assert "9,000 documents" in output
    assert single.communicate()[0]
    assert single.returncode == 0
    assert contents(out) == contents(whole)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["documents.jsonl", "index", "model", "whole"]
