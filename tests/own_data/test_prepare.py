"""`train --data`: what is guessed and said of files as people bring them, and the config."""

import csv
import importlib.util
import io
import json
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from big_retrieval import config as configs
from big_retrieval.config import Config, schema
from big_retrieval.config.checks import check
from big_retrieval.data.build import make_source
from big_retrieval.data.formats import open_files
from big_retrieval.data.sources import cell_of
from big_retrieval.errors import UserError
from big_retrieval.own_data import machine
from big_retrieval.own_data.machine import Machine
from big_retrieval.own_data.prepare import TrainingRequest, next_commands, prepare
from big_retrieval.own_data.roles import Said
from tests.helpers import in_process

WORDS = ["red", "green", "blue", "old", "new", "tall", "small", "round", "cat", "dog"]
WORDS += ["house", "tree", "car"]


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two cores, no published weights, and a folder to work in."""
    monkeypatch.setattr(machine, "here", lambda: Machine(2, flops=5e10))
    monkeypatch.setattr(machine, "text_weights", lambda: None)
    monkeypatch.chdir(tmp_path)


def caption(number: int) -> str:
    return f"a {WORDS[number % 13]} {WORDS[number // 13 % 13]} number {number}"


def pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, (20, 20, 3), dtype=np.uint8)


def png(number: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels(number)).save(out, "PNG")
    return out.getvalue()


def pictures(folder: Path, numbers: Sequence[int], name: str = "{}.png") -> None:
    for number in numbers:
        path = folder / name.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))


def table(path: Path, columns: Sequence[str], rows: Any, separator: str = ",") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(columns)
        writer.writerows(rows)


def tar_of(path: Path, samples: Mapping[int, Mapping[str, bytes]]) -> None:
    """A shard of pictures and what else each sample has: ending -> content."""
    with tarfile.open(path, "w") as tar:
        for n, members in samples.items():
            for ending, data in {"png": png(n), **members}.items():
                info = tarfile.TarInfo(f"{n}.{ending}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def run(data: str = "data", init: str = "", workdir: str = "run", **said: Any) -> Config:
    """The checked config for some data."""
    file = prepare(TrainingRequest(data, Said(**said), init), Path(workdir))
    config = made_by(file)
    check(config)
    return config


def made_by(file: Path) -> Config:
    spec: Any = importlib.util.spec_from_file_location("own", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return configs.load(module.get_config())


def records(source: Any) -> list[tuple[Any, tuple[str, ...]]]:
    """Images (decoded) and captions of all records."""
    from big_retrieval.data.images.decoding import picture

    found = make_source(source)
    return [
        (picture(x["image"]).tobytes(), x["captions"])
        for x in map(found.__getitem__, range(len(found)))
    ]


def both(config: Config) -> list[tuple[Any, tuple[str, ...]]]:
    return records(config.data) + records(config.evals["validation"].data)


def wanted(numbers: Sequence[int]) -> list[tuple[bytes, tuple[str, ...]]]:
    return sorted((pixels(n).tobytes(), (caption(n),)) for n in numbers)


# ---- Six forms


@pytest.mark.parametrize(
    "form", ["pictures", "elsewhere", "json", "csv", "jsonl", "parquet", "tars", "npz"]
)
def test_every_form_gives_the_same_records(form: str) -> None:
    folder, numbers = Path("data"), range(40)
    if form in ("pictures", "elsewhere", "json"):
        pictures(folder, numbers, "a/größe {}.png" if form == "pictures" else "images/b/{}.png")
        for n in numbers:
            text = {"pictures": f"a/größe {n}.txt", "json": f"images/b/{n}.json"}.get(
                form, f"texts/b/{n}.txt"
            )
            (folder / text).parent.mkdir(parents=True, exist_ok=True)
            (folder / text).write_text(
                json.dumps({"caption": caption(n)}) if form == "json" else f"{caption(n)}\n\n"
            )
    elif form in ("csv", "jsonl"):
        pictures(folder, numbers)
        if form == "csv":
            table(
                folder / "t.csv",
                ["n", "file", "title"],
                [(n, f"{n}.png", caption(n)) for n in numbers],
            )
        else:
            lines = [
                json.dumps({"image_path": f"{n}.png", "captions": [caption(n)]}) for n in numbers
            ]
            (folder / "t.jsonl").write_text("\n".join(lines))
    elif form == "parquet":
        folder.mkdir()
        for part in (0, 1):
            rows = [
                {"image": {"bytes": png(n), "path": ""}, "text": caption(n)}
                for n in numbers
                if n % 2 == part
            ]
            pq.write_table(pa.Table.from_pylist(rows), folder / f"train-{part}.parquet")
    elif form == "tars":
        folder.mkdir()
        for part in (0, 1):
            mine = [x for x in numbers if x % 2 == part]
            tar_of(folder / f"{part}.tar", {n: {"txt": caption(n).encode()} for n in mine})
    else:
        folder.mkdir()
        texts = np.array([caption(n) for n in numbers])
        np.savez(folder / "t.npz", pictures=np.stack([pixels(n) for n in numbers]), caption=texts)
    config = run()
    assert sorted(both(config)) == wanted(numbers)
    assert len(records(config.evals["validation"].data)) == 4
    assert (config.evals["validation"].type, config.dtype) == ("retrieval", "float32")


def test_questions_and_answers_share_an_encoder(said: list[str]) -> None:
    rows = [(n, caption(n), f"the answer to {caption(n)}") for n in range(40)]
    table(Path("data.csv"), ["id", "question", "answer"], rows)
    config = run("data.csv")
    columns = {name: (each.side, each.column, each.tower) for name, each in config.fields.items()}
    assert columns == {
        "query": ("query", "question", "text"),
        "answer": ("document", "answer", "text"),
    }
    assert any("column 'question' is the query: as its name says" in line for line in said)
    swapped = run("data.csv", workdir="other", query="answer", document="question")
    assert swapped.fields["query"].column == "answer"


def test_clicks_are_split_by_queries(said: list[str]) -> None:
    rows = [
        (f"{WORDS[n % 13]} {WORDS[n // 3 % 13]}", f"p{n % 50}", caption(n % 50), n % 17 + 1)
        for n in range(400)
    ] + [(f"{caption(n)} rare", f"p{n % 50}", caption(n % 50), 1) for n in range(3000)]
    table(Path("data.tsv"), ["query", "product_id", "title", "clicks"], rows, "\t")
    config = run("data.tsv")
    source, new = (make_source(x) for x in (config.data, config.evals["validation"].data))
    asked: Any = [
        {x["query"] for x in map(each.__getitem__, range(len(each)))} for each in (source, new)
    ]
    assert all(asked)
    assert not asked[0] & asked[1]
    assert config.labels.weight == "linear"
    assert config.labels.score == "clicks"
    assert any("column 'clicks' is the score" in line for line in said)
    assert run("data.tsv", workdir="other", score="").data.type == "pairs"


# ---- Odd files


def test_a_semicolon_table_in_latin_1_whose_pictures_lie_in_a_folder(said: list[str]) -> None:
    pictures(Path("data/my pictures"), range(30))
    rows = "".join(f"{n}.png;Café {caption(n)}\n" for n in range(30))
    Path("data/t.csv").write_bytes(f"file;title\n{rows}".encode("latin-1"))
    found = both(run())
    assert sorted(text for _, (text,) in found) == sorted(f"Café {caption(n)}" for n in range(30))
    assert "t.csv: read as Windows-1252, separated by semicolons" in said


def test_without_a_header_line() -> None:
    pictures(Path("data"), range(30))
    Path("data/t.csv").write_text("".join(f"{n}.png,{caption(n)}\n" for n in range(30)))
    assert sorted(both(run())) == wanted(range(30))


def test_broken_images_and_rows_without_text_are_left_out(said: list[str]) -> None:
    pictures(Path("data"), range(40))
    for n in range(40):
        Path(f"data/{n}.txt").write_text(caption(n) if n > 2 else "\n")
    Path("data/3.png").write_bytes(b"no image")
    Path("data/4.png").write_bytes(b"")
    Path("data/5.png").write_bytes(png(5)[:700])
    config = run()
    assert len(make_source(config.data)) + len(make_source(config.evals["validation"].data)) == 35
    assert "3 records have no captions: left out" in said
    assert "2 records have a broken image: left out" in said
    assert config.loader.max_damaged > 0.01  # number 5, of which only decoding tells


def test_names_of_tables_are_splits() -> None:
    for name, count in (("train", 30), ("val", 12), ("test", 11)):
        rows = [(f"{caption(n)} {name}", f"answer {n} {name}") for n in range(count)]
        table(Path(f"data/{name}.csv"), ["question", "answer"], rows)
    config = run()
    sizes = {name: len(make_source(x.data)) for name, x in config.evals.items()}
    assert (len(make_source(config.data)), sizes) == (30, {"validation": 12, "test": 11})
    assert config.evals["test"].every == 0


def test_records_that_share_an_image_or_a_text_stay_together() -> None:
    pictures(Path("data"), range(60))
    for n in range(0, 60, 3):
        Path(f"data/{n + 1}.png").write_bytes(png(n))  # the same image twice
    rows = [(f"{n}.png", caption(n if n % 3 == 0 else n - n % 2)) for n in range(60)]
    table(Path("data/t.csv"), ["file", "caption"], rows)
    config = run()
    train, held = records(config.data), records(config.evals["validation"].data)
    assert len(train) + len(held) == 60
    assert held
    assert not {x for x, _ in train} & {x for x, _ in held}
    assert not {x for _, x in train} & {x for _, x in held}


def test_classes_as_captions_are_on_both_sides_and_that_is_said(said: list[str]) -> None:
    pictures(Path("data"), range(60), "{}.png")
    table(Path("data/t.csv"), ["file", "label"], [(f"{n}.png", WORDS[n % 4]) for n in range(60)])
    assert len(both(run())) == 60
    assert any("4 different ones in 60 records" in line for line in said)


def test_a_folder_of_trains_is_no_split() -> None:
    pictures(Path("data/train"), range(15))
    pictures(Path("data/car"), range(15, 30))
    for n in range(30):
        Path(f"data/{'train' if n < 15 else 'car'}/{n}.txt").write_text(caption(n))
    assert sorted(both(run())) == wanted(range(30))


def test_a_column_of_ids_is_no_caption() -> None:
    pictures(Path("data"), range(30))
    rows = [(f"x{n}y", f"{n}.png", caption(n)) for n in range(30)]
    table(Path("data/t.csv"), ["item id", 'the "file', "story"], rows)
    assert run().data.text == "story"  # type: ignore[attr-defined]


def pairs(columns: Sequence[str], count: int = 30) -> None:
    """A table of `count` rows; columns called file hold pictures, of numbers n, else texts."""
    pictures(Path("data"), range(count))
    kinds = {"file": lambda n: f"{n}.png", "img": lambda n: f"{count - 1 - n}.png", "n": str,
             "url": lambda n: f"https://example.org/{n}.png"}  # fmt: skip
    rows = [
        [kinds.get(c, lambda n, c=c: f"{c} {caption(n)}")(n) for c in columns] for n in range(count)
    ]
    table(Path("data/t.csv"), columns, rows)


@pytest.mark.parametrize(
    ("columns", "said", "words"),
    [
        (("file", "one", "two"), {}, ["several columns could be", "one (texts", "--text=one"]),
        (("file", "caption"), {"text": "titel"}, ["no column 'titel'", "caption (", "--text"]),
        (("file", "caption"), {"image": "caption"}, ["--image=caption: none of 30 sampled"]),
        (("n", "story"), {}, ["no column is one half of the pairs", "--query=story"]),
        (("one", "two", "three"), {}, ["several columns", "--query=one"]),
        (("url", "caption"), {}, ["'url' has addresses", "download", "--image"]),
    ],
)  # fmt: skip
def test_what_cannot_be_told_names_columns_and_flag(columns: Any, said: Any, words: Any) -> None:
    pairs(columns)
    with pytest.raises(UserError) as problem:
        run(**said)
    assert all(word in str(problem.value) for word in words), problem.value


def test_two_columns_of_images_can_be_told_apart_by_the_flag(said: list[str]) -> None:
    pairs(("file", "img", "caption"))
    assert run().data.image == "img"  # type: ignore[attr-defined]
    assert any("others that fit: file; --image says another" in line for line in said)
    assert run(workdir="other", image="file").data.image == "file"  # type: ignore[attr-defined]


def test_folders_that_hold_too_little() -> None:
    Path("data").mkdir()
    for words in (["holds nothing", "cat.jpg and cat.txt"],):
        _fails(words)
    pictures(Path("data"), range(3))
    _fails(["3 pictures and no captions", "cat.txt beside cat.jpg", "--text=name", "--text=folder"])
    for n in range(3):
        Path(f"data/{n}.txt").write_text(caption(n))
    _fails(["3 usable records", "at least 10", "give more data"])
    for n in range(3):
        Path(f"data/{n}.txt").unlink()
    Path("data/a.csv").write_text("x,y\n1,2\n")
    Path("data/b.csv").write_text("u,v\n1,2\n")
    _fails(["tables that differ", "a.csv (x, y)", "--data="])
    Path("data/b.csv").write_text("x,v\n1,2\n")
    _fails(["that they share", "read_csv('a.csv').merge(pandas.read_csv('b.csv'), on='x')"])
    Path("data/c.csv").write_text("v,w\n1,2\n")
    first = "read_csv('b.csv').merge(pandas.read_csv('a.csv'), on='x')"
    _fails([f"{first}.merge(pandas.read_csv('c.csv'), on='v').to_csv('joined.csv'"])
    Path("data/joined.csv").write_text("x,y,v,w\n1,2,3,4\n")
    _fails(["give one of them (--data=", "data/joined.csv)."])
    Path("data/joined.csv").unlink()
    Path("data/c.csv").write_text("split,w\n1,2\n")
    with pytest.raises(UserError, match=r"give one of them \(--data=\S+\)\."):
        run()
    Path("data/c.csv").unlink()
    with pytest.raises(UserError, match="there is no file or folder 'nowhere'"):
        run("nowhere")


def _fails(words: Sequence[str]) -> None:
    with pytest.raises(UserError) as problem:
        run()
    assert all(word in str(problem.value) for word in words), problem.value


def test_steps_of_the_command_line_are_said(caplog: pytest.LogCaptureFixture) -> None:
    rows = [(f"what is {n}", f"it is {n}") for n in range(30)]
    table(Path("data/a.csv"), ["question", "answer"], rows)
    asked = TrainingRequest("data", Said(), "none")
    with caplog.at_level("INFO"):
        prepare(asked, Path("run"), ["--config.total_steps=20"])
    (line,) = [each for each in caplog.messages if " steps of " in each]
    assert ", before --config.total_steps=20; " in line


def test_one_text_in_all_records_is_told() -> None:
    table(Path("data/a.csv"), ["question", "answer"], [("what is it", "it is that")] * 30)
    _fails(["share one text"])


# ---- The config


def test_a_gpu_gets_a_larger_model(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs(("file", "caption"), 40)
    monkeypatch.setattr(machine, "here", lambda: Machine(16, 1, "H100", 80 * 2**30))
    config = run()
    assert config.towers["image"].width == 384
    assert config.batch_size == 8
    assert (config.dtype, config.fields["image"].size) == ("bfloat16", 224)  # type: ignore[attr-defined]


def test_the_split_depends_on_the_records_and_not_on_their_order() -> None:
    rows = [(caption(n), f"answer {n}") for n in range(50)]
    held = []
    for name, each in (("a", rows), ("b", rows[::-1])):
        table(Path(f"{name}.csv"), ["question", "answer"], each)
        source = make_source(run(f"{name}.csv", workdir=name).evals["validation"].data)
        held.append({source[i]["question"] for i in range(len(source))})
    assert held[0] == held[1]


def test_a_run_that_began_is_not_looked_at_again(said: list[str]) -> None:
    pairs(("file", "caption"))
    run()
    Path("run/checkpoints").mkdir()
    before = Path("run/config.py").read_bytes()
    run()
    assert "goes on with run/config.py" in said[-1]
    pictures(Path("data"), [77])
    run()
    assert any("data has changed since" in line for line in said)
    assert Path("run/config.py").read_bytes() == before
    with pytest.raises(
        UserError, match=r"holds another run of --data=.*data: give another --workdir"
    ):
        run(text="caption")


def test_flags_that_do_not_go_together() -> None:
    for args, words in (
        (["--image=file", "--config=quickstart:runlocal"], "--image goes with --data"),
        (["--data=x", "--config=quickstart:runlocal"], "leave --config out"),
        (["--data="], "--data is empty"),
        (["--data=nowhere", "--config.total_steps=2"], "no file or folder 'nowhere'"),
        (["--config.total_steps=2"], "needs --config"),
    ):
        done = in_process("train", *args)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_from_files_to_answers_by_three_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains, goes on, trains the same again by the written config, indexes and searches."""
    monkeypatch.setattr(machine, "here", lambda: Machine(2, flops=5e10, devices=8))
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
    indexed = in_process("index", *line.split()[2:])
    assert indexed.returncode == 0, indexed.stderr
    found = in_process("search", "--index=indexes/mine", "--query=a red cat")
    assert "caption a " in found.stdout, found.stderr


@pytest.mark.parametrize("name", ["br[1]", "mein Ordner [größe] (1)", "cab {1..3}", "Shirts, blue"])
@pytest.mark.parametrize("parts", [1, 2])
def test_names_that_look_like_patterns(name: str, parts: int) -> None:
    folder = Path(name)
    rows = [{"question": f"{caption(n)}?", "answer": caption(n)} for n in range(40)]
    for part in range(parts):
        folder.mkdir(exist_ok=True)
        (folder / f"part-{part}.jsonl").write_text("\n".join(map(json.dumps, rows[part::parts])))
    config = run(name, workdir=f"runs/w {name}")
    validation = config.evals["validation"].data
    assert len(make_source(config.data)) + len(make_source(validation)) == 40
    files = open_files.files_of_flag("data", f"{name}/part-0.jsonl,{name}/part-0.jsonl")
    assert files == [folder / "part-0.jsonl"] * 2


def test_pictures_are_called_by_their_paths() -> None:
    for number in range(12):
        pictures(Path("data/deep"), [number])
        Path(f"data/deep/{number}.txt").write_text(caption(number))
    source = make_source(run().data)
    ids = [source.value(n, "id") for n in range(len(source))]
    assert ids == [f"deep/{x[1][0].rpartition(' ')[2]}.png" for x in records(run().data)]


def test_printed_commands_can_be_given_to_a_shell() -> None:
    for split, numbers in (("train", range(30)), ("test", range(30, 60))):
        rows = [(f"{n}.png", caption(n)) for n in numbers]
        pictures(Path("my data"), numbers)
        table(Path(f"my data/{split}.csv"), ["file", "a caption"], rows)
    config = run("my data", workdir="my run")
    Path("my run/config.json").write_text(json.dumps(schema.to_plain(config)))
    index, search, demo = (shlex.split(line) for line in next_commands(Path("my run")))
    assert index[:3] == ["big-retrieval", "index", "--run=my run"]
    assert {"--image=file", "--show=a caption", "--out=indexes/my run"} <= set(index)
    (files,) = (x.removeprefix("--data=") for x in index if x.startswith("--data="))
    assert [x.name for x in open_files.files_of_flag("data", files)] == ["train.csv", "test.csv"]
    assert search[2:] == ["--index=indexes/my run", "--query=..."]
    assert demo[2:] == ["--run=my run", "--index=indexes/my run"]


def test_what_is_cut_or_few_is_told(said: list[str]) -> None:
    long = " ".join(["word"] * 200)
    rows = [(f"{caption(n)}?", f"{long} {n}") for n in range(30)]
    table(Path("data.csv"), ["question", "answer"], rows)
    config = run("data.csv")
    assert config.fields["answer"].length == 64
    cut = "Of column 'answer' the first 64 tokens are read, in training and search, and 100% of its"
    assert any(cut in line and "--config.fields.answer.length=128" in line for line in said)
    assert not any("column 'question' the first" in line for line in said)
    assert any("3 records for validation are few" in line for line in said)


def test_the_same_data_from_another_folder_is_the_same_run(monkeypatch: Any) -> None:
    rows = [(f"{caption(n)}?", caption(n)) for n in range(30)]
    table(Path("deep/data.csv"), ["question", "answer"], rows)
    run("deep/data.csv", workdir="run")
    Path("run/checkpoints").mkdir()
    place = Path.cwd()
    assert run("./deep/../deep/data.csv", workdir="run")
    monkeypatch.chdir(place / "deep")
    assert run("data.csv", workdir=str(place / "run"))
    with pytest.raises(UserError, match="holds another run"):
        run("data.csv", workdir=str(place / "run"), query="answer", document="question")


@pytest.mark.parametrize("form", ["pictures", "csv"])
def test_copies_of_picture_files_are_one_image(form: str) -> None:
    """Forty files, of which 30 to 39 are copies of 0 to 9, with captions of their own."""
    pictures(Path("data"), range(30))
    for number in range(30, 40):
        Path(f"data/{number}.png").write_bytes(png(number - 30))
    if form == "csv":
        rows = [(f"{n}.png", caption(n)) for n in range(40)]
        table(Path("data/t.csv"), ["file", "title"], rows)
    else:
        for number in range(40):
            Path(f"data/{number}.txt").write_text(caption(number))
    config = run()
    assert sorted(both(config)) == sorted(
        (pixels(n % 30).tobytes(), (caption(n),)) for n in range(40)
    )
    shared = 0
    for data in (config.data, config.evals["validation"].data):
        source = make_source(data)
        names = [cell_of(source, n, "image") for n in range(len(source))]
        shared += len(names) - len(set(names))
    assert shared == 10
