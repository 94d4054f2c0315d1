"""`train --data`: columns, validation splits, the config file, and starts of the same run."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from big_retrieval.auto_config import machine
from big_retrieval.auto_config.columns import DataFlags
from big_retrieval.auto_config.machine import Machine
from big_retrieval.auto_config.prepare import TrainingRequest, load_config, next_commands, prepare
from big_retrieval.config import schema
from big_retrieval.data.build import make_source
from big_retrieval.data.formats import open_files
from big_retrieval.errors import UserError
from big_retrieval.inference.saved import config_json, read_config
from tests.auto_config.files import (
    WORDS,
    all_records,
    answer,
    caption,
    expected,
    json_lines,
    pictures,
    png,
    question,
    records,
    run,
    table,
)
from tests.helpers import in_process

TRAIN = range(40)


def pairs(columns: Sequence[str], count: int = 30) -> None:
    """Writes a table; columns called file or img hold pictures, the others texts."""
    pictures("data", range(count))
    kinds = {"file": lambda n: f"{n}.png", "img": lambda n: f"{count - 1 - n}.png"}
    rows = [
        [kinds.get(c, lambda n, c=c: f"{c} {caption(n)}")(n) for c in columns] for n in range(count)
    ]
    table("data/t.csv", columns, rows)


def test_prepare_shares_encoder_of_questions_and_answers(said: list[str]) -> None:
    table("data.csv", ["id", "question", "answer"], [(n, question(n), answer(n)) for n in TRAIN])
    config = run("data.csv")
    columns = {name: (each.side, each.column, each.tower) for name, each in config.fields.items()}
    assert columns == {
        "query": ("query", "question", "text"),
        "answer": ("document", "answer", "text"),
    }
    assert "column 'question' is the query (by its name)" in said
    swapped = run("data.csv", workdir="other", query="answer", document="question")
    assert swapped.fields["query"].column == "answer"
    assert "column 'answer' is the query (by --query)" in said


@pytest.mark.parametrize(
    ("row", "negative"),
    [
        (lambda n: {"anchor": question(n), "positive": answer(n)}, ""),
        (lambda n: {"query": question(n), "pos": [answer(n)], "neg": [answer(n + 1)]}, "neg"),
        (
            lambda n: {"premise": question(n), "hypothesis": answer(n), "negative": answer(n + 1)},
            "negative",
        ),
        (lambda n: {"question": question(n), "answer": answer(n), "url": f"x.org/{n}"}, ""),
    ],
)
def test_prepare_reads_pairs_of_sentence_transformers(row: Any, negative: str) -> None:
    json_lines("data.jsonl", [row(n) for n in TRAIN])
    config = run("data.jsonl")
    query, document = (config.fields[name].column for name in ("query", "answer"))
    found = set()
    for source in map(make_source, (config.data, config.evals["validation"].data)):
        for record in map(source.__getitem__, range(len(source))):
            text = record[document]
            found.add((record[query], text[0] if isinstance(text, list) else text))
    assert found == {(question(n), answer(n)) for n in TRAIN}
    assert (config.negatives.count, config.negatives.column) == (
        bool(negative),
        negative or "negatives",
    )


def test_prepare_rejects_columns_that_may_judge_pairs() -> None:
    rows = [(question(n), answer(n), n % 2) for n in TRAIN]
    table("data.csv", ["question", "answer", "is_duplicate"], rows)
    with pytest.raises(UserError, match=r"--score=is_duplicate weighs .* --score= \(empty\) takes"):
        run("data.csv")
    assert len(make_source(run("data.csv", score="").data)) == 36
    rows = [(question(n % 20), answer(n), n % 2) for n in range(400)]
    table("more.csv", ["question", "answer", "is_duplicate"], rows)
    weighed = run("more.csv", workdir="other", score="is_duplicate")
    assert (weighed.labels.score, weighed.data.type) == ("is_duplicate", "graded")


@pytest.mark.parametrize("with_test", [False, True])
def test_prepare_splits_clicks_by_queries(with_test: bool) -> None:
    rows = [
        (f"{WORDS[n % 13]} {WORDS[n // 3 % 13]}", f"p{n % 50}", caption(n % 50), n % 17 + 1)
        for n in range(400)
    ] + [(f"{caption(n)} rare", f"p{n % 50}", caption(n % 50), 1) for n in range(3000)]
    columns = ["query", "product_id", "title", "clicks"]
    table("data/train.tsv", columns, rows, "\t")
    if with_test:
        table("data/test.tsv", columns, rows[:30], "\t")
    config = run()
    source, new = (make_source(x) for x in (config.data, config.evals["validation"].data))
    queries: Any = [
        {x["query"] for x in map(each.__getitem__, range(len(each)))} for each in (source, new)
    ]
    assert all(queries)
    assert not queries[0] & queries[1]
    assert (config.labels.weight, config.labels.score) == ("linear", "clicks")
    if with_test:
        assert len(make_source(config.evals["test"].data)) == 30
    else:
        assert run(workdir="other", score="").data.type == "pairs"


def test_prepare_drops_unusable_records(said: list[str]) -> None:
    pictures("data", TRAIN)
    for n in TRAIN:
        Path(f"data/{n}.txt").write_text(caption(n) if n > 2 else "\n")
    Path("data/3.png").write_bytes(b"no image")
    Path("data/4.png").write_bytes(b"")
    Path("data/5.png").write_bytes(png(5)[:700])
    config = run()
    assert len(make_source(config.data)) + len(make_source(config.evals["validation"].data)) == 35
    (line,) = [x for x in said if "left out" in x]
    assert line.startswith("5 records for train left out, the first: data, row 1: 'captions'")
    assert config.loader.max_damaged > 0.01  # number 5, which opens but cannot be decoded


def test_split_keeps_copies_together() -> None:
    """Files 1, 4, 7 ... are copies of 0, 3, 6 ..."""
    pictures("data", range(60))
    for n in range(0, 60, 3):
        Path(f"data/{n + 1}.png").write_bytes(png(n))
    rows = [(f"{n}.png", caption(n if n % 3 == 0 else n - n % 2)) for n in range(60)]
    table("data/t.csv", ["file", "caption"], rows)
    config = run()
    train, held = records(config.data), records(config.evals["validation"].data)
    assert len(train) + len(held) == 60
    assert held
    assert not {x for x, _ in train} & {x for x, _ in held}
    assert not {x for _, x in train} & {x for _, x in held}


def test_split_ignores_order_of_rows() -> None:
    rows = [(question(n), answer(n)) for n in range(60)]
    held = []
    for name, ordered in (("a", rows), ("b", rows[::-1])):
        table(f"{name}.csv", ["question", "answer"], ordered)
        source = make_source(run(f"{name}.csv", workdir=name).evals["validation"].data)
        held.append({source[n]["question"] for n in range(len(source))})
    assert held[0] == held[1]


def test_split_puts_repeated_texts_on_both_sides(said: list[str]) -> None:
    pictures("data", range(60))
    table("data/t.csv", ["file", "label"], [(f"{n}.png", WORDS[n % 4]) for n in range(60)])
    assert len(all_records(run())) == 60
    assert any("4 distinct texts in 60 records" in line for line in said)


def test_prepare_warns_of_copies_in_splits(capsys: pytest.CaptureFixture[str]) -> None:
    for split, numbers in (("train", range(30)), ("val", range(27, 45))):
        rows = [(question(n), answer(n)) for n in numbers]
        table(f"data/{split}.csv", ["question", "answer"], rows)
    run()
    assert "3 of 18 records for validation have the text of a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("columns", "flags", "words"),
    [
        (("file", "one", "two"), {}, ["no column is the text", "file, one, two", "--text=COLUMN"]),
        (("file", "caption"), {"text": "titel"}, ["no column 'titel'", "caption", "--text"]),
        (("file", "a", "caption"), {"image": "a"}, ["none of 30 records", "--images=FOLDER"]),
        (("n", "story"), {}, ["no column is the query", "n, story", "--query=COLUMN"]),
        (("query", "story"), {}, ["no column is the document", "--document=COLUMN"]),
        (("file", "caption"), {"image": ""}, ["no column is the query"]),
    ],
)  # fmt: skip
def test_prepare_rejects_unclear_columns(columns: Any, flags: Any, words: Any) -> None:
    pairs(columns)
    with pytest.raises(UserError) as problem:
        run(**flags)
    assert all(word in str(problem.value) for word in words), problem.value


def test_prepare_prefers_first_known_name(said: list[str]) -> None:
    pairs(("file", "img", "negative_caption", "caption"))
    assert run().data.image == "img"  # type: ignore[attr-defined]
    assert "column 'img' is the image (by its name; --image chooses another: file)" in said
    assert any("'negative_caption' is not used" in line for line in said)
    assert run(workdir="other", image="file").data.image == "file"  # type: ignore[attr-defined]


def test_prepare_reads_images_of_flag() -> None:
    pictures("pictures/deep", TRAIN)
    table("t.csv", ["file", "caption"], [(f"deep/{n}.png", caption(n)) for n in TRAIN])
    assert all_records(run("t.csv", images="pictures")) == expected(TRAIN)
    pictures("data", TRAIN)
    with pytest.raises(UserError, match="--images is for paths in tables"):
        run(images="data", text="name")


def test_prepare_warns_of_cut_texts_and_few_records(said: list[str]) -> None:
    long = " ".join(["word"] * 200)
    rows = [(f"{caption(n)}?", f"{long} {n}") for n in range(30)]
    table("data.csv", ["question", "answer"], rows)
    config = run("data.csv")
    assert config.fields["answer"].length == 64
    comment = "100% of the texts in 'answer' are longer than the 64 tokens that are read"
    assert any(comment in line and "fields.answer.length=128" in line for line in said)
    assert comment in " ".join(Path("run/config.py").read_text().split("\n    # "))
    assert not any("texts in 'question'" in line for line in said)
    assert any("only 3 records for validation" in line for line in said)


@pytest.mark.parametrize("write", [json.dumps, str])
def test_prepare_warns_of_lists_in_cells(write: Any, said: list[str]) -> None:
    pictures("data", TRAIN)
    rows = [(f"{n}.png", write([caption(n), f"another {n}"])) for n in TRAIN]
    table("data/t.csv", ["file", "captions"], rows)
    run()
    assert any("for train are lists in brackets" in line for line in said)


def test_prepare_logs_changed_keys(said: list[str]) -> None:
    table("a.csv", ["question", "answer"], [(question(n), answer(n)) for n in TRAIN])
    prepare(TrainingRequest("a.csv", DataFlags()), Path("run"), ["--config.total_steps=20"])
    assert any("records, before --config.total_steps=20" in line for line in said)


def test_prepare_keeps_config_of_started_run(said: list[str], monkeypatch: Any) -> None:
    table("deep/data.csv", ["question", "answer"], [(question(n), answer(n)) for n in TRAIN])
    run("deep/data.csv")
    Path("run/checkpoints").mkdir()
    before = Path("run/config.py").read_bytes()
    with Path("deep/data.csv").open("a") as file:
        file.write("another,one\n")
    config = run("./deep/../deep/data.csv")
    assert "resuming with run/config.py" in said[-1]
    assert Path("run/config.py").read_bytes() == before
    for source in (config.data, config.evals["validation"].data):  # rows would mix the splits
        with pytest.raises(UserError, match=r"data.csv has changed since the rows in .* were"):
            make_source(source)
    place = Path.cwd()
    monkeypatch.chdir(place / "deep")
    assert run("data.csv", workdir=str(place / "run"))
    with pytest.raises(UserError, match=r"holds another run of --data=.*data.csv. Give another"):
        run("data.csv", workdir=str(place / "run"), query="answer", document="question")


def test_run_folder_can_be_moved() -> None:
    pictures("data", TRAIN)
    table("data/t.csv", ["file", "caption"], [(f"{n}.png", caption(n)) for n in TRAIN])
    config, folder = run(workdir="./a/../run"), Path("run")
    Path("run/config.json").write_bytes(config_json(config, folder))
    assert read_config(folder) == config
    folder.rename("moved")
    moved = load_config(Path("moved/config.py"))
    assert read_config(Path("moved")) == moved != config
    assert all_records(moved) == expected(TRAIN)


def test_train_rejects_contradicting_flags() -> None:
    for args, words in (
        (["--image=file", "--config=quickstart:runlocal"], "--image needs --data"),
        (["--data=x", "--config=quickstart:runlocal"], "Remove --config"),
        (["--data="], "--data is empty"),
        (["--data=nowhere", "--config.total_steps=2"], "no file or folder 'nowhere'"),
        (["--data=nowhere", "--config.total_step=2"], "did you mean config.total_steps?"),
        (["--data=nowhere", "--config.optimizer.lr=fast"], "config.optimizer.lr is 'fast'"),
        (["--config.total_steps=2"], "needs --config"),
    ):
        done = in_process("train", *args)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_train_index_search_by_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains, resumes, trains the same again by the written config, indexes and searches."""
    monkeypatch.setattr(machine, "here", lambda: Machine(2, devices=8))
    pairs(("file", "caption"), 30)
    short = ("--config.total_steps=2", "--config.eval_every=0", "--config.final_weights=last")
    done = in_process("train", "--data=data", "--workdir=runs/mine", *short)
    assert done.returncode == 0, done.stderr
    (line,) = [x for x in done.stdout.splitlines() if "big-retrieval index" in x]
    again = in_process("train", "--data", "data", "--workdir", "runs/mine", *short)
    assert "already finished" in again.stdout
    other = in_process("train", "--config=runs/mine/config.py", "--workdir=runs/other", *short)
    assert other.returncode == 0, other.stderr
    results = [json.loads(Path(f"runs/{x}/results.json").read_text()) for x in ("mine", "other")]
    assert results[0]["params_sha256"] == results[1]["params_sha256"]
    Path("runs/mine").rename("runs/moved")
    again = in_process("train", "--data=data", "--workdir=runs/moved", *short)
    assert "already finished" in again.stdout, again.stderr
    again = in_process("evaluate", "--run=runs/moved")
    assert again.returncode == 0, again.stderr
    Path("runs/moved").rename("runs/mine")
    indexed = in_process("index", *line.split()[2:])
    assert indexed.returncode == 0, indexed.stderr
    found = in_process("search", "--index=indexes/mine", "--query=a red cat")
    assert "caption a " in found.stdout, found.stderr


def test_next_commands_are_quoted() -> None:
    for split, numbers in (("train", range(30)), ("val", range(30, 60))):
        pictures("my data", numbers)
        rows = [(f"{n}.png", caption(n)) for n in numbers]
        table(f"my data/{split}.csv", ["file", "a caption"], rows)
    config = run("my data", workdir="my run", text="a caption")
    Path("my run/config.json").write_text(json.dumps(schema.to_plain(config)))
    index, search, demo = (shlex.split(line) for line in next_commands(Path("my run")))
    assert index[:3] == ["big-retrieval", "index", "--run=my run"]
    assert {"--image=file", "--show=a caption", "--out=indexes/my run"} <= set(index)
    (files,) = (x.removeprefix("--data=") for x in index if x.startswith("--data="))
    assert [x.name for x in open_files.files_of_flag("data", files)] == ["train.csv", "val.csv"]
    assert search[2:] == ["--index=indexes/my run", "--query=..."]
    assert demo[2:] == ["--run=my run", "--index=indexes/my run"]
