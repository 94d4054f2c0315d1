"""From a run and files of documents to an index and to answers."""

import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import sparse

import big_retrieval
from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.errors import UserError
from big_retrieval.evals.trec import read_run
from big_retrieval.retrieval import answers, open_index
from big_retrieval.retrieval.encode import rows_of
from big_retrieval.retrieval.making import IndexOptions, make
from big_retrieval.retrieval.searching import open_searcher
from big_retrieval.retrieval.vocabulary import BagOfWordsEncoder
from big_retrieval.train.build import untrained
from big_retrieval.train.checkpoint import write_model
from tests.helpers import ROOT, command, environment, in_process, lexical_texts, tiny

SCENES = SceneRecords("test", count=60)
TEXTS = [SCENES[i]["captions"][0] for i in range(60)]
ASK = "a big red circle"


def save(folder: Path, **changes: Any) -> None:
    """A checkpoint of a tiny model; what its parameters are does not matter here."""
    write_model(untrained(tiny(**changes), batch_size=64), folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs, `lexical` and `dense`, and documents: 60 and three damaged ones."""
    place = tmp_path_factory.mktemp("search")
    save(place / "lexical", **lexical_texts())
    save(place / "dense")
    lines = []
    for number, text in enumerate(TEXTS):
        Image.fromarray(SCENES[number]["image"]).save(place / f"{number}.png")
        row = {"id": f"d{number}", "captions": [text, "another"], "image": f"{number}.png"}
        lines.append(json.dumps(row))
    (place / "bad.png").write_bytes(b"no image")
    lines[7:7] = ["{", '{"id": "x", "captions": []}', '{"id": "y", "image": "bad.png"}']
    (place / "documents.jsonl").write_text("\n".join(lines))
    return place


@pytest.fixture(scope="module")
def lexical(place: Path) -> Path:
    """An index of the lexical run, built in many runs."""
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


def best(scores: np.ndarray, depth: int) -> list[str]:
    order = np.lexsort((np.arange(len(scores)), -scores))[:depth]
    return [f"d{number}" for number in order if scores[number] > 0]


def test_the_model_asks(place: Path, lexical: Path) -> None:
    model = big_retrieval.load(place / "lexical")
    documents, query = rows_of(model, TEXTS, "document"), rows_of(model, [ASK], "query")
    table = (query @ documents.T).toarray()[0]
    found = open_searcher(lexical).show(ASK, 5)
    assert [each.id for each in found] == best(table, 5)
    np.testing.assert_allclose([each.score for each in found], -np.sort(-table)[:5], rtol=1e-4)
    assert found[0].shown == TEXTS[int(found[0].id[1:])]
    np.testing.assert_allclose(sum(v for _, v in found[0].words), found[0].score, rtol=1e-4)


@pytest.mark.slow
def test_documents_of_several_fields(place: Path) -> None:
    """Their weighted average; a field that a document lacks has no weight."""
    columns = {"first": "captions", "second": "more"}
    rows = [{"id": f"d{i}", "captions": text} for i, text in enumerate(TEXTS)]
    for number, row in enumerate(rows[:40]):
        row["more"] = TEXTS[-number]
    (place / "fields.jsonl").write_text("\n".join(map(json.dumps, rows)))
    changes = lexical_texts()
    fields = changes["fields"]
    fields["first"] = fields.pop("document")
    fields["second"] = fields["first"].copy_and_resolve_references()
    for name, weight in (("first", 0.75), ("second", 0.25)):
        fields[name].update(column=columns[name], weight=weight, optional=name == "second")
    data = recipe.entry(configs.Pairs(), path=str(place / "fields.jsonl"), image="")
    save(place / "several", **changes, data=data, evals={})
    index = make(options(place, "several", "several-index", data=str(place / "fields.jsonl")))
    model = big_retrieval.load(place / "several")
    first, query = rows_of(model, TEXTS, "first"), rows_of(model, [ASK], "query")
    second = rows_of(model, [TEXTS[-i] for i in range(40)], "second")
    table = (query @ first.T).toarray()[0]
    table[:40] = 0.75 * table[:40] + 0.25 * (query @ second.T).toarray()[0]
    found = open_searcher(index).show(ASK, 60)
    assert [each.id for each in found] == best(table, 60)
    np.testing.assert_allclose([e.score for e in found], -np.sort(-table)[: len(found)], rtol=1e-4)


def test_words_ask_without_a_model(place: Path, lexical: Path, tmp_path: Path) -> None:
    """With nothing but a copy of the index."""
    model = big_retrieval.load(place / "lexical")
    shutil.copytree(lexical, tmp_path / "index")
    searcher = open_searcher(tmp_path / "index", mode="bag")
    bag = BagOfWordsEncoder.load(lexical).bag([ASK], 20)
    table = (bag @ rows_of(model, TEXTS, "document").T).toarray()[0]
    assert [each.id for each in searcher.show(ASK, 8)] == best(table, 8)
    assert searcher.column == open_searcher(lexical).column  # of files, in every mode
    for nothing in ("", "漢字", "[SEP]"):
        assert searcher.show(nothing, 8) == []
    assert searcher.ids(["", ASK], 2)[0] == ([], [])


def test_index_keeps_whole_texts_when_its_file_is_gone(place: Path, tmp_path: Path) -> None:
    texts = ["a red circle " * 20, "a blue square"]
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join(json.dumps({"captions": text}) for text in texts))
    index = make(options(place, "lexical", str(tmp_path / "index"), data=str(path), binary=True))
    path.unlink()
    found = open_searcher(index, mode="bag").show("red circle", 1)[0]
    assert (found.id, found.shown) == ("long-000000", texts[0][:120])
    row = {"row": 0, "id": "long-000000", "shown": texts[0][:120], "text": texts[0]}
    assert open_index(index).store.row(0) == row


def test_documents_as_bags_of_words(place: Path, binary: Path) -> None:
    model = big_retrieval.load(place / "lexical")
    query = rows_of(model, [ASK], "query")
    bags = BagOfWordsEncoder.load(binary).bag(TEXTS, 20)
    table = (query @ bags.T).toarray()[0]
    searcher = open_searcher(binary)
    assert searcher.mode == "binary"
    assert [each.id for each in searcher.show(ASK, 9)] == best(table, 9)
    counts = (BagOfWordsEncoder.load(binary).bag([ASK], 20) @ bags.T).toarray()[0]
    found = open_searcher(binary, mode="bag").show(ASK, 9)
    assert [each.id for each in found] == best(counts, 9)


def test_bags_of_a_head_that_normalises_have_norm_1(place: Path) -> None:
    """As in evaluations; without it longer documents would win."""
    save(place / "normed", **lexical_texts(normalise=True))
    out = make(options(place, "normed", "normed-index", binary=True))
    searcher, model = open_searcher(out), big_retrieval.load(place / "normed")
    assert searcher.mode == "binary"
    bags = BagOfWordsEncoder.load(out).bag(TEXTS, 20).toarray()
    bags /= np.linalg.norm(bags, axis=1, keepdims=True)
    wanted = (rows_of(model, [ASK], "query") @ bags.T)[0]
    found = searcher.show(ASK, 9)
    np.testing.assert_allclose([each.score for each in found], -np.sort(-wanted)[:9], rtol=1e-4)
    with pytest.raises(UserError, match="with bags of words"):
        open_searcher(out, mode="parametric")


def test_images_are_found_by_texts(place: Path, dense: Path) -> None:
    model = big_retrieval.load(place / "dense")
    images = model.encode_images([place / f"{number}.png" for number in range(60)])
    table = model.score(model.encode_texts([ASK]), images)[0]
    searcher = open_searcher(dense)
    found = searcher.show(ASK, 60)
    np.testing.assert_allclose([each.score for each in found], -np.sort(-table), rtol=1e-4)
    assert found[0].id == f"d{table.argmax()}"
    assert found[0].shown == f"{table.argmax()}.png"
    index = open_index(dense)
    assert len(index) == 60  # without the three damaged ones
    by_image = open_searcher(dense, field="image")
    assert by_image.show(str(place / "5.png"), 1)[0].id == "d5"


def test_a_folder_of_pictures(place: Path, dense: Path, tmp_path: Path) -> None:
    """The same embeddings as of the table that names them; a run is no data, damage is counted."""
    folder = tmp_path / "photos"
    (folder / "deep" / "run").mkdir(parents=True)
    names = [f"deep/{n}.png" if n % 2 else f"{n}.png" for n in range(10)]
    for number, name in enumerate(names):
        (folder / name).write_bytes((place / f"{number}.png").read_bytes())
    (folder / "deep/run/metrics.jsonl").touch()
    (folder / "deep/run/0.png").write_bytes((place / "0.png").read_bytes())
    (folder / "zbad.png").write_bytes(b"no image")
    out = str(tmp_path / "index")
    changed = options(place, "dense", out, data=str(folder))
    index = open_index(make(changed))
    searcher = open_searcher(Path(out), field="image")
    assert len(index) == 10
    for number, name in enumerate(names):
        found = searcher.show(str(place / f"{number}.png"), 1)[0]
        assert (found.id, found.shown) == (name, f"photos/{name}")


@pytest.fixture(scope="module")
def vdr(place: Path) -> Path:
    """A model with lexical heads of texts and images."""
    changes = lexical_texts(terms="words", top_k=9, keep_input_terms=True)
    head = configs.Lexical(terms="words", top_k=9, tied=False, layer_norm=False)
    image = recipe.entry(configs.ImageField(), size=32, head=head)
    tower = {"width": 16, "depth": 1, "heads": 2, "mlp": 32, "pool": "none", "class_tokens": 0}
    towers = {
        "text": changes["towers"]["text"],
        "image": recipe.entry(configs.ViT(), patch=8, **tower),
    }
    fields = {"text": changes["fields"]["query"], "image": image}
    save(place / "vdr", fields=fields, towers=towers, topology="inner")
    return place / "vdr"


@pytest.mark.slow
def test_words_find_images(place: Path, vdr: Path) -> None:
    """Gated images, searched by words or by texts."""
    out = make(options(place, "vdr", "vdr-index", show="image"))
    index, model = open_index(out), big_retrieval.load(vdr)
    assert index.about.entries == 9 * 60
    images = rows_of(model, [place / f"{number}.png" for number in range(60)], "image")
    for mode, query in (
        ("bag", BagOfWordsEncoder.load(out).bag([ASK], 20)),
        ("parametric", rows_of(model, [ASK], "text")),
    ):
        found = open_searcher(out, mode=mode).show(ASK, 5)
        scores = (query @ images.T).toarray()[0]
        np.testing.assert_allclose([e.score for e in found], -np.sort(-scores)[: len(found)], 1e-4)
        assert [each.shown for each in found] == [f"{each.id[1:]}.png" for each in found]
    assert len(found) == 5
    with pytest.raises(UserError, match="--binary indexes words, but field 'image' reads images"):
        make(options(place, "vdr", "never", binary=True))


@pytest.mark.slow
def test_titles_are_indexed(place: Path) -> None:
    changes = lexical_texts(terms="words")
    changes["fields"]["document"].update(title="heading")
    save(place / "titled", **changes)
    path = place / "titled.jsonl"
    rows = [
        {"id": 1, "heading": "red", "body": "circle"},
        {"id": 2, "heading": "", "body": "star"},
        {"id": 3, "heading": "blue", "body": ""},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = {"data": str(path), "text": ("body",)}
    out = make(options(place, "titled", "titled-words", binary=True, **made))
    searcher = open_searcher(out, mode="bag")
    for query, ids in (("red", ["1"]), ("circle", ["1"]), ("star", ["2"]), ("blue", ["3"])):
        assert searcher.ids([query], 3)[0][0] == ids
    assert searcher.show("red", 1)[0].shown == "red circle"
    out = make(options(place, "titled", "titled-index", **made))
    model = big_retrieval.load(place / "titled")
    query = rows_of(model, ["red circle"], "query")
    documents = rows_of(model, [("red", "circle"), ("", "star"), ("blue", "")], "document")
    found = open_searcher(out).ids(["red circle"], 3)[0]
    scores = (query @ documents.T).toarray()[0]
    np.testing.assert_allclose(found[1], -np.sort(-scores), rtol=1e-4)
    swapped = {**made, "text": ("heading",), "title": "body"}
    other = make(options(place, "titled", "other", binary=True, **swapped))
    assert open_searcher(other, mode="bag").ids(["circle"], 3)[0][0] == ["1"]


@pytest.mark.slow
def test_a_model_that_is_not_the_indexs(place: Path, lexical: Path, dense: Path) -> None:
    other, small = place / "other_model", place / "small"
    save(other, **lexical_texts(), seed=5)
    save(small, **lexical_texts(), tokenizer__vocab_size=90)
    with pytest.raises(UserError, match="the weights differ"):
        open_searcher(lexical, checkpoint=str(other))
    with pytest.raises(UserError, match=r"field 'query' is lexical, the index dense"):
        open_searcher(dense, checkpoint=str(other), field="query")
    with pytest.raises(UserError, match="the vocabulary differs"):
        open_searcher(lexical, checkpoint=str(small))
    with pytest.raises(UserError, match=r"need field 'query', but .*dense.* has no"):
        open_searcher(lexical, checkpoint=str(place / "dense"))


def test_a_tokenizer_of_another_index(lexical: Path, tmp_path: Path) -> None:
    from big_retrieval.io import manifest

    shutil.copytree(lexical, tmp_path / "index")
    path = tmp_path / "index" / "tokenizer.json"
    path.write_text(path.read_text().replace('"circle"', '"cirkle"'))
    with pytest.raises(UserError, match=r"tokenizer.json has"):
        open_searcher(tmp_path / "index", mode="bag")
    manifest.write_manifest(tmp_path / "index")
    with pytest.raises(UserError, match="were replaced"):
        open_searcher(tmp_path / "index", mode="bag")


def test_modes_that_do_not_fit(lexical: Path, binary: Path, dense: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"with encoded documents\. Use --mode=parametric"):
        open_searcher(lexical, mode="binary")
    with pytest.raises(UserError, match=r"with bags of words\. Use --mode=binary"):
        open_searcher(binary, mode="parametric")
    for mode in ("bag", "binary"):
        with pytest.raises(UserError, match=f"--mode={mode} "):
            open_searcher(dense, mode=mode)
    with pytest.raises(UserError, match=r"by the words of 'query'"):
        open_searcher(lexical, mode="bag", field="document")
    with pytest.raises(UserError, match=r"nowhere of index .* does not exist"):
        open_searcher(lexical, checkpoint=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="--query_field: the model has no field 'title'"):
        open_searcher(lexical, field="title")


@pytest.mark.parametrize(
    ("model", "changes", "words"),
    [
        ("dense", {"binary": True}, "--binary needs a lexical field, but image is dense"),
        ("dense", {"format": "lucene"}, "--format=lucene needs lexical fields"),
        ("dense", {"values": "float16"}, "--values=float16 needs a lexical field"),
        ("dense", {"text": ("captions",)}, "--text needs one field, but 0 of"),
        ("lexical", {"field": "title"}, "'title' is no field"),
        (
            "lexical",
            {"field": "query=1,document=1", "binary": True},
            "--binary needs one field, but documents have query, document",
        ),
        ("lexical", {"data": "nothing.jsonl"}, "--data: there is no file 'nothing.jsonl'"),
        ("lexical", {"text": ("title",)}, "documents has no column 'title'"),
        ("lexical", {"id": "image"}, "none of the first|the id"),
        ("nothing", {}, "No folder"),
    ],
)
def test_wishes_that_cannot_be(place: Path, model: str, changes: dict, words: str) -> None:
    if "id" in changes:
        path = place / "twice.jsonl"
        path.write_text('{"image": 1, "captions": "a"}\n' * 2)
        changes = {**changes, "data": str(path)}
        words = "Duplicate document id '1'"
    with pytest.raises(UserError, match=words):
        make(options(place, model, "never", **changes))
    assert not list(place.glob("never*"))


def test_images_are_no_ids(place: Path) -> None:
    path = place / "pictures.csv"
    path.write_text("image\n0.png\n1.png\n")
    with pytest.raises(UserError, match=r"--id=image names the column of images"):
        make(options(place, "dense", "never", data=str(path), id="image", show=""))
    assert not list(place.glob("never*"))


def test_ids_twice_far_apart(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("big_retrieval.retrieval.preparing.TEXTS", 2)
    path = place / "far.jsonl"
    path.write_text("".join(json.dumps({"id": i % 5, "captions": "a"}) + "\n" for i in range(6)))
    with pytest.raises(UserError, match="Documents 0 and 5 have the id '0'"):
        make(options(place, "lexical", "never", data=str(path)))


def test_the_commands(place: Path, lexical: Path) -> None:
    """Index, ask, run files and exports as a user calls them."""
    flags = [f"--run={place / 'lexical'}", f"--data={place / 'documents.jsonl'}"]
    made = in_process("index", *flags, f"--out={place / 'asked'}", "--values=float16")
    assert made.returncode == 0, made.stderr
    assert re.search(r"60 documents, \d+\.\d values each", made.stdout)
    assert "line 8: not JSON" in made.stderr
    assert "skipped: 3 of the documents" in made.stderr
    queries = place / "queries.csv"
    queries.write_text("qid,words\nq1,red circle\nq2,漢\nq3,blue star\n")
    out = [f"--queries={queries}", f"--out={place / 'run.trec'}", "--text=words", "--id=qid"]
    asked = in_process("search", f"--index={place / 'asked'}", "--mode=bag", "--depth=3", *out)
    assert asked.returncode == 0, asked.stderr
    found = read_run(place / "run.trec")
    assert set(found) == {"q1", "q3"}
    assert len(found["q1"]) == 3
    again = in_process("index", *flags, f"--out={place / 'asked'}")
    assert again.returncode == 2
    message = f"--out {place / 'asked'} exists and is not empty. Choose a new folder."
    assert again.stderr == f"error: {message}\n"


def test_one_question_and_several_in_a_pipe(lexical: Path) -> None:
    args = ("search", f"--index={lexical}", "--mode=bag", "--depth=2")
    one = in_process(*args, "--query=red circle")
    assert one.returncode == 0, one.stderr
    assert re.match(r"  1  \d+\.\d{4}\s+d\d+  a? ?\w+", one.stdout)
    piped = in_process(*args, stdin="red circle\n\n漢\n")
    assert piped.stdout == one.stdout + "no results: no document shares a word with the query\n"


def test_an_image_as_the_query(place: Path, dense: Path) -> None:
    """--image alone was ignored, and the command asked on the terminal."""
    args = ("search", f"--index={dense}", "--depth=1", f"--image={place / '5.png'}")
    for field in ([], ["--query_field=image"]):
        found = in_process(*args, *field)
        assert found.returncode == 0, found.stderr
        assert found.stdout.split()[2] == "d5"
    for flags, words in (
        (
            ["--query_field=text"],
            "--image needs an image field, but queries of .* have the field",
        ),
        (["--query=a"], "--query and --image are both given"),
        (["--text=caption"], "--text needs --queries"),
    ):
        refused = in_process(*args, *flags)
        assert refused.returncode == 2
        assert re.search(words, refused.stderr), refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ascii", "closed pipe"])
def test_a_terminal_without_utf8_and_a_closed_pipe_end_quietly(place: Path, how: str) -> None:
    """Each ended in a traceback: UnicodeEncodeError, and BrokenPipeError at the exit."""
    documents = place / "accents.jsonl"
    texts = [f"a red circle, café 🙂 {number}" for number in range(3)]
    lines = [json.dumps({"id": f"é{n}", "captions": [text]}) for n, text in enumerate(texts)]
    documents.write_text("\n".join(lines))
    folder = make(options(place, "lexical", f"accents {how}", data=str(documents)))
    process = subprocess.Popen(
        command("search", f"--index={folder}", "--mode=bag"), cwd=ROOT, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment() | ({"PYTHONIOENCODING": "ascii"} if how == "ascii" else {}),
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    if how == "closed pipe":
        process.stdout.close()
        process.stdout = None
    out, err = process.communicate("red circle caf\xe9\n".encode("latin-1") * 1000, timeout=300)
    assert (process.returncode, err) == (0, b"")
    if how == "ascii":
        assert rb"\xe90  a red circle, caf\xe9 \U0001f642 0" in out


@pytest.fixture
def by_images(dense: Path, place: Path) -> Any:
    """Searches the dense index by images, in this process: (file of queries) -> run file."""
    searcher = open_searcher(dense, field="image")

    def ask(queries: Path) -> Path:
        out = queries.with_suffix(".trec")
        searcher.write_run(str(queries), out, 2, column="image", tag="t")
        return out

    ask.searcher = searcher  # type: ignore[attr-defined]
    return ask


def test_queries_that_cannot_be_read_are_left_out(
    place: Path, by_images: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"a": "5.png", "b": "bad.png", "c": "6.png"}
    queries = place / "pictures.jsonl"
    lines = [json.dumps({"id": name, "image": path}) for name, path in names.items()]
    queries.write_text("\n".join(lines))
    found = read_run(by_images(queries))
    assert {query: ranked[0][0] for query, ranked in found.items()} == {"a": "d5", "c": "d6"}
    said = capsys.readouterr().err
    assert "skipped: " in said
    assert "skipped: 1 of the queries" in said
    queries.write_text(lines[1])
    with pytest.raises(UserError, match=r"none of the queries can be used: .*bad\.png"):
        by_images(queries)
    assert not list(place.glob("pictures.trec.*partial"))


def test_a_mistyped_image_does_not_end_the_questions(
    place: Path,
    by_images: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = f"{place / 'nowhere.png'}\n{place / 'bad.png'}\n{place / '5.png'}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    answers.converse(by_images.searcher, 1)
    said = capsys.readouterr()
    assert said.out.split()[2] == "d5"
    assert said.err.count("error: ") == 2
    assert "nowhere.png" in said.err
    with pytest.raises(UserError, match=r"nowhere\.png"):
        answers.answer(by_images.searcher, str(place / "nowhere.png"), 1)


def test_documents_none_of_which_can_be_encoded(place: Path, vdr: Path) -> None:
    path = place / "bad.jsonl"
    path.write_text(json.dumps({"id": "y", "image": "bad.png"}))
    for model, form in (("dense", "index"), *((vdr.name, x) for x in ("index", "lucene", "csr"))):
        with pytest.raises(UserError, match=r"none of the documents can be used: .*bad\.png"):
            make(options(place, model, "never", data=str(path), format=form))
        assert not list(place.glob("never*"))


def test_flags_that_do_not_go_together(lexical: Path) -> None:
    for args, words in (
        (["search"], "--index is missing"),
        (["search", f"--index={lexical}", "--queries=a"], "--queries needs --out"),
        (["search", f"--index={lexical}", "--depth=0"], "--depth is 0"),
        (["search", f"--index={lexical}", "--query= "], "--query is empty"),
        (["search", "--mode=bags"], "--mode is 'bags'; it must be one of parametric, bag, binary."),
        (["index", "--data=a", "--out=b"], "--run is missing: run or checkpoint"),
        (["evaluate", "--run=nowhere"], "No folder nowhere"),
        (["index", "--run=a", "--data=b", "--out=c", "--quantise=3"], "--quantise must"),
    ):
        ended = in_process(*args)
        assert ended.returncode == 2
        assert ended.stderr.startswith("error: ")
        assert words in ended.stderr
        assert ended.stderr.count("\n") == 1


def test_exports(place: Path) -> None:
    model = big_retrieval.load(place / "lexical")
    wanted = rows_of(model, TEXTS, "document")
    out = make(options(place, "lexical", "as-csr", format="csr"))
    found = sparse.load_npz(out / "documents.npz")
    np.testing.assert_allclose(found.toarray(), wanted.toarray(), atol=1e-5)
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
        compile((out / "upload.py").read_text(), "upload.py", "exec")


def test_words_ask_without_jax(lexical: Path) -> None:
    code = (
        "import sys; from pathlib import Path; "
        "from big_retrieval.retrieval.searching import open_searcher; "
        f"found = open_searcher(Path({str(lexical)!r}), mode='bag').show({ASK!r}, 3); "
        "print(len(found), 'jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert done.stdout == "3 False\n"
