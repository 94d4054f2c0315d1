"""`train --data`: which files of a folder are read, and which are the same."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from big_retrieval.errors import UserError
from tests.own_data.test_prepare import (
    _machine,  # noqa: F401 - a fixture: two cores, no weights, a folder to work in
    both,
    caption,
    pictures,
    png,
    records,
    run,
    table,
    wanted,
)


def test_a_table_may_have_the_name_of_a_picture() -> None:
    pictures(Path("data/img"), range(40))
    Path("data/products.png").write_bytes(png(99))  # such as a plot of the table
    rows = [(f"img/{n}.png", caption(n)) for n in range(40)]
    table(Path("data/products.csv"), ["file", "caption"], rows)
    assert sorted(both(run())) == wanted(range(40))


def test_uncompressed_pictures_that_differ_in_their_middle_are_different(
    said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Their files have one size, start and end; a copy of one still is the same image."""

    def bitmap(number: int) -> np.ndarray:
        image = np.full((120, 120, 3), 255, np.uint8)
        image[60, 60] = (number, 7, 9)
        return image

    for split, numbers in (("train", range(40)), ("validation", range(39, 50))):
        for number in numbers:
            file = Path(f"data/{split}/{number}.bmp")
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(bitmap(number)).save(file)
        captions = [(f"{n}.bmp", f"{caption(n)} in {split}") for n in numbers]
        table(Path(f"data/{split}/metadata.csv"), ["file_name", "text"], captions)
    shutil.copy("data/train/7.bmp", "data/train/copy.bmp")
    with Path("data/train/metadata.csv").open("a") as file:
        file.write("copy.bmp,another caption\n")
    config = run()
    expected = sorted((bitmap(n).tobytes(), (f"{caption(n)} in train",)) for n in range(40))
    expected.append((bitmap(7).tobytes(), ("another caption",)))
    assert sorted(records(config.data)) == sorted(expected)
    warned = "1 of 11 records for validation have the image of one that is trained on"
    assert warned in capsys.readouterr().err
    table(Path("one/t.csv"), ["file", "text"], [
        (f"../data/train/{n}.bmp", caption(n)) for n in range(40)
    ] + [("../data/train/copy.bmp", "another caption")])  # fmt: skip
    config = run("one", workdir="other")
    sides = [{x for x, _ in records(s)} for s in (config.data, config.evals["validation"].data)]
    assert list(map(len, sides)) in ([36, 4], [37, 3])
    assert not sides[0] & sides[1]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_tables_whose_pictures_lie_in_folders_of_their_names(form: str) -> None:
    """Such as shirts.csv with shirts/0.png and shoes.csv with shoes/0.png."""
    for kind, numbers in (("shirts", range(20)), ("shoes", range(20, 40))):
        names = {f"{place}.png": number for place, number in enumerate(numbers)}
        for name, number in names.items():
            pictures(Path("data") / kind, [number], name)
        if form == "csv":
            rows = [(name, caption(number)) for name, number in names.items()]
            table(Path(f"data/{kind}.csv"), ["file", "caption"], rows)
        else:
            whole = {name: caption(number) for name, number in names.items()}
            Path(f"data/{kind}.json").write_text(json.dumps(whole))
    assert sorted(both(run())) == wanted(range(40))


def test_tables_that_lie_lower_are_told(said: list[str]) -> None:
    for place, kind in enumerate(("cats", "dogs", "deep/emus", "deep/fish")):
        numbers = range(20 * place, 20 * place + 20)
        pictures(Path("data") / kind, numbers)
        rows = [(f"{number}.png", caption(number)) for number in numbers]
        table(Path("data") / kind / "metadata.csv", ["file_name", "text"], rows)
    assert sorted(both(run())) == wanted(range(40))
    (told,) = [line for line in said if "left out" in line]
    assert told == (
        "2 tables that lie lower are left out (such as deep/emus/metadata.csv): "
        f"--data={Path.cwd()}/data/deep takes those there, "
        f"'--data={Path.cwd()}/data/**/*.csv' takes all"
    )
    deep = told.partition("--data=")[2].split()[0]
    assert sorted(both(run(deep, workdir="deep"))) == wanted(range(40, 80))
    assert sorted(both(run("data/**/*.csv", workdir="all"))) == wanted(range(80))


def test_a_pattern_of_files_in_several_folders() -> None:
    for kind, numbers in (("cats", range(20)), ("dogs", range(20, 40))):
        pictures(Path("data") / kind, numbers)
        rows = [(f"{number}.png", caption(number)) for number in numbers]
        table(Path("data") / kind / "metadata.csv", ["file_name", "text"], rows)
    assert sorted(both(run("data/*/*.csv"))) == wanted(range(40))


@pytest.mark.parametrize("separator", [",", ";"])
def test_two_columns_of_one_name(separator: str) -> None:
    pictures(Path("data"), range(20))
    rows = [(f"{n}.png", caption(n), "another") for n in range(20)]
    table(Path("data/t.csv"), ["file", "text", "text"], rows, separator)
    with pytest.raises(UserError, match=r"t.csv has 2 columns 'text' in its header; rename"):
        run()


@pytest.mark.parametrize("separator", [";", "\t"])
@pytest.mark.parametrize("quoted", [False, True])
def test_a_header_with_a_comma_in_a_table_of_semicolons(separator: str, quoted: bool) -> None:
    pictures(Path("data"), range(20))
    mark = '"' if quoted else ""
    end = f"\nzweite{separator} Zeile" if quoted else ""
    lines = [("Datei", "Titel, deutsch", "Preis")]
    lines += [(f"{n}.png", f"{caption(n)}{end}", "3,50") for n in range(20)]
    text = "".join(separator.join(f"{mark}{cell}{mark}" for cell in line) + "\n" for line in lines)
    Path("data/t.csv").write_text(text)
    found = both(run(text="Titel, deutsch"))
    expected = [(image, (text + end,)) for image, (text,) in wanted(range(20))]
    assert sorted(found) == expected


@pytest.mark.parametrize("write", [json.dumps, str])
def test_lists_written_into_cells_are_told(
    write: Callable[[list[str]], str], said: list[str]
) -> None:
    pictures(Path("data"), range(20))
    rows = [(f"{n}.png", write([caption(n), "another"])) for n in range(20)]
    table(Path("data/t.csv"), ["file", "captions"], rows)
    run()
    (told,) = [line for line in said if "brackets" in line]
    assert told.startswith("column 'captions' has lists written as text")
    pictures(Path("plain"), range(20))
    table(Path("plain/t.csv"), ["file", "captions"], [(f"{n}.png", caption(n)) for n in range(20)])
    said.clear()
    run("plain", workdir="other")
    assert not [line for line in said if "brackets" in line]
