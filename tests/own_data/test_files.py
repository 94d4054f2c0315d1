"""`train --data`: which files of a folder are read, and which are the same."""

from pathlib import Path

from tests.own_data.test_prepare import (
    _machine,  # noqa: F401 - a fixture: two cores, no weights, a folder to work in
    both,
    caption,
    pictures,
    png,
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
