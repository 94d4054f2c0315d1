"""From a run and files of documents to an index, an export and search results."""

import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import sparse

import big_retrieval
from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.evals.trec import read_run
from big_retrieval.io import manifest
from big_retrieval.retrieval import answers, open_index
from big_retrieval.retrieval.build_index import IndexOptions, make
from big_retrieval.retrieval.encode import rows_of
from big_retrieval.retrieval.index_search import SearchResult, open_searcher
from big_retrieval.retrieval.vocabulary import BagOfWordsEncoder
from big_retrieval.train.build import untrained
from big_retrieval.train.checkpoint import write_model
from tests.helpers import ROOT, command, environment, in_process, lexical_texts, tiny, user_error

SCENES = SceneRecords("test", count=60)
TEXTS = [SCENES[i]["captions"][0] for i in range(60)]
ASK = "a big red circle"


def save(folder: Path, **changes: Any) -> None:
    """Writes a checkpoint of a tiny model with initial weights."""
    write_model(untrained(tiny(**changes), batch_size=64), folder)


def write_lines(path: Path, rows: list[Any]) -> str:
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in rows))
    return str(path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `lexical` and `dense`, and 60 documents with 3 damaged ones."""
    place = tmp_path_factory.mktemp("search")
    save(place / "lexical", **lexical_texts())
    save(place / "dense")
    rows: list[Any] = []
    for i, text in enumerate(TEXTS):
        Image.fromarray(SCENES[i]["image"]).save(place / f"{i}.png")
        rows.append({"id": f"d{i}", "captions": [text, "another"], "image": f"{i}.png"})
    (place / "bad.png").write_bytes(b"no image")
    rows[7:7] = ["{", {"id": "x", "captions": []}, {"id": "y", "image": "bad.png"}]
    write_lines(place / "documents.jsonl", rows)
    return place


@pytest.fixture(scope="module")
def lexical(place: Path) -> Path:
    """An index of the lexical model, built in many runs on the disk."""
    return make(options(place, "lexical", "lexical-index", memory=2**14))


@pytest.fixture(scope="module")
def binary(place: Path) -> Path:
    return make(options(place, "lexical", "binary-index", binary=True))


@pytest.fixture(scope="module")
def dense(place: Path) -> Path:
    return make(options(place, "dense", "dense-index"))


def options(place: Path, model: str, out: str, **changes: Any) -> IndexOptions:
    base = IndexOptions(place / model, str(place / "documents.jsonl"), place / out)
    return dataclasses.replace(base, **changes)


def assert_best(results: list[SearchResult], scores: np.ndarray, depth: int) -> None:
    """Checks that results are the documents d0, d1, ... with the best scores above 0."""
    order = [i for i in np.lexsort((np.arange(len(scores)), -scores))[:depth] if scores[i] > 0]
    assert [x.id for x in results] == [f"d{i}" for i in order]
    np.testing.assert_allclose([x.score for x in results], scores[order], rtol=1e-4)


# ---- Results equal the scores of the model


def test_model_searches_lexical_index(place: Path, lexical: Path) -> None:
    model = big_retrieval.load(place / "lexical")
    documents, query = rows_of(model, TEXTS, "document"), rows_of(model, [ASK], "query")
    results = open_searcher(lexical).show(ASK, 5)
    assert_best(results, (query @ documents.T).toarray()[0], 5)
    assert results[0].shown == TEXTS[int(results[0].id[1:])]
    np.testing.assert_allclose(sum(v for _, v in results[0].words), results[0].score, rtol=1e-4)


def test_bag_of_words_searches_copied_index_without_model(
    place: Path, lexical: Path, tmp_path: Path
) -> None:
    model = big_retrieval.load(place / "lexical")
    shutil.copytree(lexical, tmp_path / "index")
    searcher = open_searcher(tmp_path / "index", mode="bag")
    bag = BagOfWordsEncoder.load(lexical).bag([ASK], 20)
    scores = (bag @ rows_of(model, TEXTS, "document").T).toarray()[0]
    assert_best(searcher.show(ASK, 8), scores, 8)
    assert searcher.column == open_searcher(lexical).column
    for unknown in ("", "漢字", "[SEP]"):
        assert searcher.show(unknown, 8) == []
    assert searcher.ids(["", ASK], 2)[0] == ([], [])


@pytest.mark.parametrize("normalise", [False, True])
def test_index_of_bags_of_words(place: Path, normalise: bool) -> None:
    """Bags have norm 1 if the embeddings do, as in evaluations."""
    save(place / f"bags-{normalise}", **lexical_texts(normalise=normalise))
    out = make(options(place, f"bags-{normalise}", f"bags-index-{normalise}", binary=True))
    searcher, model = open_searcher(out), big_retrieval.load(place / f"bags-{normalise}")
    assert searcher.mode == "binary"
    bags = BagOfWordsEncoder.load(out).bag(TEXTS, 20).toarray()
    if normalise:
        bags /= np.linalg.norm(bags, axis=1, keepdims=True)
    assert_best(searcher.show(ASK, 9), (rows_of(model, [ASK], "query") @ bags.T)[0], 9)
    bag = BagOfWordsEncoder.load(out).bag([ASK], 20)
    assert_best(open_searcher(out, mode="bag").show(ASK, 9), (bag @ bags.T)[0], 9)


def test_texts_and_images_search_images(place: Path, dense: Path) -> None:
    model = big_retrieval.load(place / "dense")
    images = model.encode_images([place / f"{i}.png" for i in range(60)])
    scores = model.score(model.encode_texts([ASK]), images)[0]
    results = open_searcher(dense).show(ASK, 60)
    np.testing.assert_allclose([x.score for x in results], -np.sort(-scores), rtol=1e-4)
    best = scores.argmax()
    assert (results[0].id, results[0].shown) == (f"d{best}", f"{best}.png")
    assert len(open_index(dense)) == 60  # without the three damaged ones
    by_image = open_searcher(dense, field="image")
    assert by_image.show(str(place / "5.png"), 1)[0].id == "d5"


def test_folder_of_pictures_is_indexed(place: Path, tmp_path: Path) -> None:
    """Folders of runs are left out, damaged pictures are skipped."""
    folder = tmp_path / "photos"
    (folder / "deep" / "run").mkdir(parents=True)
    names = [f"deep/{n}.png" if n % 2 else f"{n}.png" for n in range(10)]
    for i, name in enumerate([*names, "deep/run/0.png"]):
        shutil.copy(place / f"{i % 10}.png", folder / name)
    (folder / "deep/run/metrics.jsonl").touch()
    (folder / "zbad.png").write_bytes(b"no image")
    out = make(options(place, "dense", str(tmp_path / "index"), data=str(folder)))
    searcher = open_searcher(out, field="image")
    assert len(open_index(out)) == 10
    for i, name in enumerate(names):
        result = searcher.show(str(place / f"{i}.png"), 1)[0]
        assert (result.id, result.shown) == (name, f"photos/{name}")


@pytest.mark.slow
def test_fields_of_documents_are_averaged(place: Path) -> None:
    """A field that a document does not have has no weight."""
    columns = {"first": "captions", "second": "more"}
    rows = [{"id": f"d{i}", "captions": text} for i, text in enumerate(TEXTS)]
    for i, row in enumerate(rows[:40]):
        row["more"] = TEXTS[-i]
    path = write_lines(place / "fields.jsonl", rows)
    changes = lexical_texts()
    fields = changes["fields"]
    fields["first"] = fields.pop("document")
    fields["second"] = fields["first"].copy_and_resolve_references()
    for name, weight in (("first", 0.75), ("second", 0.25)):
        fields[name].update(column=columns[name], weight=weight, optional=name == "second")
    data = recipe.entry(configs.Pairs(), path=path, image="")
    save(place / "several", **changes, data=data, evals={})
    index = make(options(place, "several", "several-index", data=path))
    model = big_retrieval.load(place / "several")
    first, query = rows_of(model, TEXTS, "first"), rows_of(model, [ASK], "query")
    second = rows_of(model, [TEXTS[-i] for i in range(40)], "second")
    scores = (query @ first.T).toarray()[0]
    scores[:40] = 0.75 * scores[:40] + 0.25 * (query @ second.T).toarray()[0]
    assert_best(open_searcher(index).show(ASK, 60), scores, 60)


@pytest.mark.slow
def test_titles_are_indexed(place: Path) -> None:
    changes = lexical_texts(terms="words")
    changes["fields"]["document"].update(title="heading")
    save(place / "titled", **changes)
    pairs = [("red", "circle"), ("", "star"), ("blue", "")]
    rows = [{"id": i, "heading": title, "body": text} for i, (title, text) in enumerate(pairs)]
    data = {"data": write_lines(place / "titled.jsonl", rows), "text": ("body",)}
    out = make(options(place, "titled", "titled-words", binary=True, **data))
    searcher = open_searcher(out, mode="bag")
    for query, ids in (("red", ["0"]), ("circle", ["0"]), ("star", ["1"]), ("blue", ["2"])):
        assert searcher.ids([query], 3)[0][0] == ids
    assert searcher.show("red", 1)[0].shown == "red circle"
    out = make(options(place, "titled", "titled-index", **data))
    model = big_retrieval.load(place / "titled")
    query, documents = rows_of(model, ["red circle"], "query"), rows_of(model, pairs, "document")
    scores = (query @ documents.T).toarray()[0]
    ids = open_searcher(out).ids(["red circle"], 3)[0]
    np.testing.assert_allclose(ids[1], -np.sort(-scores), rtol=1e-4)
    swapped = {**data, "text": ("heading",), "title": "body"}
    other = make(options(place, "titled", "other", binary=True, **swapped))
    assert open_searcher(other, mode="bag").ids(["circle"], 3)[0][0] == ["0"]


@pytest.fixture(scope="module")
def vdr(place: Path) -> Path:
    """A model with lexical heads of texts and images."""
    changes = lexical_texts(terms="words", top_k=9, keep_input_terms=True)
    head = configs.Lexical(terms="words", top_k=9, tied=False, layer_norm=False)
    image = recipe.entry(configs.ImageField(), size=32, head=head)
    tower = {"width": 16, "depth": 1, "heads": 2, "mlp": 32, "pool": "none", "class_tokens": 0}
    image_tower = recipe.entry(configs.ViT(), patch=8, **tower)
    towers = {"text": changes["towers"]["text"], "image": image_tower}
    fields = {"text": changes["fields"]["query"], "image": image}
    save(place / "vdr", fields=fields, towers=towers, topology="inner")
    return place / "vdr"


@pytest.mark.slow
def test_words_search_gated_images(place: Path, vdr: Path) -> None:
    out = make(options(place, "vdr", "vdr-index", show="image"))
    index, model = open_index(out), big_retrieval.load(vdr)
    assert index.about.entries == 9 * 60
    images = rows_of(model, [place / f"{i}.png" for i in range(60)], "image")
    for mode, query in (
        ("bag", BagOfWordsEncoder.load(out).bag([ASK], 20)),
        ("parametric", rows_of(model, [ASK], "text")),
    ):
        results = open_searcher(out, mode=mode).show(ASK, 5)
        scores = -np.sort(-(query @ images.T).toarray()[0])[: len(results)]
        np.testing.assert_allclose([x.score for x in results], scores, 1e-4)
        assert [x.shown for x in results] == [f"{x.id[1:]}.png" for x in results]
    assert len(results) == 5
    with user_error("--binary indexes words, but field 'image' reads images"):
        make(options(place, "vdr", "never", binary=True))


def test_index_keeps_texts_of_deleted_file(place: Path, tmp_path: Path) -> None:
    texts = ["a red circle " * 20, "a blue square"]
    path = write_lines(tmp_path / "long.jsonl", [{"captions": text} for text in texts])
    index = make(options(place, "lexical", str(tmp_path / "index"), data=path, binary=True))
    Path(path).unlink()
    result = open_searcher(index, mode="bag").show("red circle", 1)[0]
    assert (result.id, result.shown) == ("long-000000", texts[0][:120])
    row = {"row": 0, "id": "long-000000", "shown": texts[0][:120], "text": texts[0]}
    assert open_index(index).store.row(0) == row


def test_exports_have_embeddings_of_model(place: Path) -> None:
    model = big_retrieval.load(place / "lexical")
    out = make(options(place, "lexical", "as-csr", format="csr"))
    rows = sparse.load_npz(out / "documents.npz")
    expected = rows_of(model, TEXTS, "document")
    np.testing.assert_allclose(rows.toarray(), expected.toarray(), atol=1e-5)
    out = make(options(place, "lexical", "as-lucene", format="lucene", quantise=100.0, binary=True))
    first = json.loads((out / "documents.jsonl").read_text().splitlines()[0])
    assert first["id"] == "d0"
    assert set(first["vector"].values()) == {100}
    for name in ("lexical", "dense"):
        out = make(options(place, name, f"{name}-qdrant", format="qdrant"))
        about = json.loads((out / "collection.json").read_text())
        assert (about["vector"], about["documents"]) == (name, 60)
        last = json.loads((out / "payloads.jsonl").read_text().splitlines()[-1])
        assert last == {"id": "d59", "text": TEXTS[59] if name == "lexical" else "59.png"}


# ---- Refused input


@pytest.mark.slow
def test_searcher_rejects_another_model(place: Path, lexical: Path, dense: Path) -> None:
    other, small = place / "other_model", place / "small"
    save(other, **lexical_texts(), seed=5)
    save(small, **lexical_texts(), tokenizer__vocab_size=90)
    for index, model, field, words in (
        (lexical, other, "", "the weights differ"),
        (dense, other, "query", "field 'query' is lexical, the index dense"),
        (lexical, small, "", "the vocabulary differs"),
        (lexical, place / "dense", "", "need field 'query'"),
    ):
        with user_error(words):
            open_searcher(index, checkpoint=str(model), field=field)


def test_searcher_rejects_tokenizer_of_another_index(lexical: Path, tmp_path: Path) -> None:
    shutil.copytree(lexical, tmp_path / "index")
    path = tmp_path / "index" / "tokenizer.json"
    path.write_text(path.read_text().replace('"circle"', '"cirkle"'))
    with user_error("tokenizer.json has"):
        open_searcher(tmp_path / "index", mode="bag")
    manifest.write_manifest(tmp_path / "index")
    with user_error("were replaced"):
        open_searcher(tmp_path / "index", mode="bag")


@pytest.mark.parametrize(
    ("index", "changes", "words"),
    [
        ("lexical-index", {"mode": "binary"}, "Use --mode=parametric"),
        ("binary-index", {"mode": "parametric"}, "Use --mode=binary"),
        ("dense-index", {"mode": "bag"}, "--mode=bag needs a lexical index"),
        ("dense-index", {"mode": "binary"}, "--mode=binary needs a lexical index"),
        ("lexical-index", {"mode": "bag", "field": "document"}, "Remove --query_field"),
        ("lexical-index", {"checkpoint": "/nowhere"}, "/nowhere"),
        ("lexical-index", {"field": "title"}, "--query_field: the model has no field 'title'"),
    ],
)
@pytest.mark.usefixtures("lexical", "binary", "dense")
def test_searcher_rejects_wrong_mode(place: Path, index: str, changes: Any, words: str) -> None:
    with user_error(words):
        open_searcher(place / index, **changes)


@pytest.mark.parametrize(
    ("model", "changes", "words"),
    [
        ("dense", {"binary": True}, "--binary needs a lexical field, but image is dense"),
        ("dense", {"format": "lucene"}, "--format=lucene needs lexical fields"),
        ("dense", {"values": "float16"}, "--values=float16 needs a lexical field"),
        ("dense", {"text": ("captions",)}, "--text needs one field, but 0 of"),
        ("lexical", {"field": "title"}, "'title' is not a document field"),
        ("lexical", {"field": "query=1,document=1", "binary": True}, "--binary needs one field"),
        ("lexical", {"data": "nothing.jsonl"}, "--data: there is no file 'nothing.jsonl'"),
        ("lexical", {"text": ("title",)}, "documents has no column 'title'"),
        ("lexical", {"data": "same.jsonl", "id": "image"}, "Duplicate document id '1'"),
        ("lexical", {"data": "far.jsonl"}, "Documents 0 and 5 have the id '0'"),
        ("dense", {"data": "pictures.csv", "id": "image"}, "--id=image names the column of images"),
        ("dense", {"data": "bad.jsonl"}, "bad.png"),
        ("lexical", {"data": "bad.jsonl", "format": "csr"}, "captions"),
        ("nothing", {}, "No folder"),
    ],
)
def test_index_rejects_wrong_options(
    place: Path, monkeypatch: pytest.MonkeyPatch, model: str, changes: Any, words: str
) -> None:
    monkeypatch.setattr("big_retrieval.retrieval.index_work.TEXTS", 2)
    write_lines(place / "same.jsonl", [{"image": 1, "captions": "a"}] * 2)
    write_lines(place / "far.jsonl", [{"id": i % 5, "captions": "a"} for i in range(6)])
    write_lines(place / "bad.jsonl", [{"id": "y", "image": "bad.png"}])
    (place / "pictures.csv").write_text("image\n0.png\n1.png\n")
    if (place / changes.get("data", "no")).exists():
        changes = {**changes, "data": str(place / changes["data"])}
    with user_error(words):
        make(options(place, model, "never", **changes))
    assert not list(place.glob("never*"))


# ---- Commands


def test_commands_index_and_search(place: Path) -> None:
    flags = [f"--run={place / 'lexical'}", f"--data={place / 'documents.jsonl'}"]
    done = in_process("index", *flags, f"--out={place / 'asked'}", "--values=float16")
    assert done.returncode == 0, done.stderr
    assert re.search(r"60 documents, \d+\.\d values each", done.stdout)
    assert "line 8: not JSON" in done.stderr
    assert "skipped: 3 of the documents" in done.stderr
    (place / "queries.csv").write_text("qid,words\nq1,red circle\nq2,漢\nq3,blue star\n")
    out = [f"--queries={place / 'queries.csv'}", f"--out={place / 'run.trec'}"]
    search = ("search", f"--index={place / 'asked'}", "--mode=bag")
    done = in_process(*search, "--depth=3", *out, "--text=words", "--id=qid")
    assert done.returncode == 0, done.stderr
    run = read_run(place / "run.trec")
    assert set(run) == {"q1", "q3"}
    assert len(run["q1"]) == 3
    done = in_process("index", *flags, f"--out={place / 'asked'}")
    assert done.returncode == 2
    assert "exists and is not empty" in done.stderr
    one = in_process(*search, "--depth=2", "--query=red circle")
    assert re.match(r"  1  \d+\.\d{4}\s+d\d+  a? ?\w+", one.stdout)
    piped = in_process(*search, "--depth=2", stdin="red circle\n\n漢\n")
    assert piped.stdout.startswith(one.stdout + "no results")


def test_search_by_image(place: Path, dense: Path) -> None:
    args = ("search", f"--index={dense}", "--depth=1", f"--image={place / '5.png'}")
    for field in ([], ["--query_field=image"]):
        done = in_process(*args, *field)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[2] == "d5"


def test_search_skips_damaged_query_images(
    place: Path, dense: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    searcher, out = open_searcher(dense, field="image"), place / "pictures.trec"
    names = {"a": "5.png", "b": "bad.png", "c": "6.png"}
    queries = [{"id": name, "image": path} for name, path in names.items()]
    path = write_lines(place / "pictures.jsonl", queries)
    searcher.write_run(path, out, 2, column="image", tag="t")
    run = {query: ranked[0][0] for query, ranked in read_run(out).items()}
    assert run == {"a": "d5", "c": "d6"}
    assert "skipped: 1 of the queries" in capsys.readouterr().err
    path = write_lines(place / "pictures.jsonl", queries[1:2])
    with user_error("none of the queries can be used", "bad.png"):
        searcher.write_run(path, out, 2, column="image", tag="t")
    assert not list(place.glob("pictures.trec.*partial"))


def test_conversation_continues_after_wrong_image(
    place: Path, dense: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    searcher = open_searcher(dense, field="image")
    lines = f"{place / 'nowhere.png'}\n{place / 'bad.png'}\n{place / '5.png'}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    answers.converse(searcher, 1)
    out, err = capsys.readouterr()
    assert out.split()[2] == "d5"
    assert err.count("error: ") == 2
    assert "nowhere.png" in err
    with user_error("nowhere.png"):
        answers.answer(searcher, str(place / "nowhere.png"), 1)


def test_printed_results_cannot_control_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    result = SearchResult("a\x1b[31m\n  1  9.9", 0.5, "cap\x1b]0;x\x07tion \n b", (("w\x9b", 0.5),))
    searcher: Any = SimpleNamespace(show=lambda query, depth: [result])
    answers.answer(searcher, "words", 1)
    assert capsys.readouterr().out == (
        "  1  0.5000    a\\x1b[31m\\n  1  9.9  cap\\x1b]0;x\\x07tion b\n     w\\x9b 0.5\n"
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["search"], "--index is missing"),
        (["search", "--index=INDEX", "--queries=a"], "--queries needs --out"),
        (["search", "--index=INDEX", "--depth=0"], "--depth is 0"),
        (["search", "--index=INDEX", "--query= "], "--query is empty"),
        (["search", "--index=INDEX", "--image=5.png", "--query=a"], "--query and --image"),
        (["search", "--index=INDEX", "--image=5.png", "--text=caption"], "--text needs --queries"),
        (["search", "--index=INDEX", "--image=5.png", "--query_field=text"], "field 'text'"),
        (["search", "--index=INDEX", "--mode=bags"], "--mode is 'bags'"),
        (["index", "--data=a", "--out=b"], "--run is missing"),
        (["index", "--run=a", "--data=b", "--out=c", "--quantise=3"], "--quantise"),
    ],
)
def test_commands_reject_wrong_flags(dense: Path, args: list[str], words: str) -> None:
    done = in_process(*(arg.replace("INDEX", str(dense)) for arg in args))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_queries_are_opened_before_the_model(
    lexical: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("big_retrieval.inference.load.put_together", None)
    path = write_lines(tmp_path / "queries.jsonl", [{"question": "a"}])
    args = [f"--index={lexical}", f"--queries={path}", f"--out={tmp_path / 'run.trec'}"]
    done = in_process("search", *args, "--text=query")
    assert done.returncode == 2
    assert "queries has no column 'query'" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ascii", "closed pipe"])
def test_terminal_without_utf8_and_closed_pipe_end_quietly(place: Path, how: str) -> None:
    texts = [f"a red circle, café 🙂 {number}" for number in range(3)]
    rows = [{"id": f"é{n}", "captions": [text]} for n, text in enumerate(texts)]
    documents = write_lines(place / "accents.jsonl", rows)
    folder = make(options(place, "lexical", f"accents {how}", data=documents))
    process = subprocess.Popen(
        command("search", f"--index={folder}", "--mode=bag"), cwd=ROOT, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment() | ({"PYTHONIOENCODING": "ascii"} if how == "ascii" else {}),
    )  # fmt: skip
    assert process.stdout is not None
    if how == "closed pipe":
        process.stdout.close()
        process.stdout = None
    out, err = process.communicate("red circle caf\xe9\n".encode("latin-1") * 1000, timeout=300)
    assert (process.returncode, err) == (0, b"")
    if how == "ascii":
        assert rb"\xe90  a red circle, caf\xe9 \U0001f642 0" in out


def test_bag_of_words_search_does_not_import_jax(lexical: Path) -> None:
    code = (
        "import sys; from pathlib import Path; "
        "from big_retrieval.retrieval.index_search import open_searcher; "
        f"results = open_searcher(Path({str(lexical)!r}), mode='bag').show({ASK!r}, 3); "
        "print(len(results), 'jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert done.stdout == "3 False\n"
