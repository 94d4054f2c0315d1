"""JSON lists and objects: entries are found whatever texts hold; bad files are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from big_retrieval.data.stores import json_files
from big_retrieval.data.stores.ingest import open_store
from big_retrieval.data.stores.json_files import (
    JSON_LIST,
    json_object_reader,
    json_qrels_reader,
    read_json_list,
)
from big_retrieval.errors import Damaged, UserError

VALUES = st.recursive(
    st.booleans() | st.integers() | st.text(alphabet='ab"\\[]{},: \n\u2019\u00e9'),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
ROWS = st.lists(
    st.dictionaries(st.text(alphabet='a"\\]}', max_size=3), VALUES, max_size=3), max_size=5
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(ROWS, st.sampled_from([None, 1]), st.booleans(), st.sampled_from([8, 30, 2**20]))
def test_entries_of_a_list(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[Any],
    indent: Any,
    ascii: bool,
    window: int,
) -> None:
    path = tmp_path / "rows.json"
    text = "\ufeff \n" * indent if indent else ""
    path.write_text(text + json.dumps(rows, indent=indent, ensure_ascii=ascii) + "\n", "utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(json_files, "WINDOW", window)
        (block,) = read_json_list(path)
    found = [
        {name: values[n] for name, values in block.columns.items() if values[n] is not None}
        for n in range(len(block.places))
    ]
    assert found == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1}', "what follows entry 0 .the file ends"),
        ('[{"a": 1}, ', "what follows entry 1 .the file ends"),
        ('[{"a": 1} {}]', "what follows entry 1 .'{' instead of a comma"),
        ('[{"a": 1}]]', "what follows entry 1 .there is more after its end"),
        ('["a", 3]', "none of 2 rows can be read: row 1, not a JSON object"),
    ],
)
def test_bad_lists(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(UserError, match=message):
        open_store([tmp_path / "rows.json"], JSON_LIST)


def test_bad_entry_of_a_list_is_a_damaged_row(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('[{"a": 1}, 12, {"a": 2},]')
    store = open_store([tmp_path / "rows.json"], JSON_LIST)
    assert (len(store), store.row(2)) == (3, {"a": 2})
    with pytest.raises(Damaged, match="row 2: not a JSON object with keys"):
        store.row(1)


def test_rows_and_qrels_of_an_object(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"d1": "text", "d2": {"id": "d2", "n": 2}, "d3": {"id": "d4"}, "d5": 3}')
    store = open_store([path], json_object_reader(path, "id"))
    assert [store.row(n) for n in (0, 1)] == [{"id": "d1", "text": "text"}, {"id": "d2", "n": 2}]
    assert store.place(1) == f"{path}, row 'd2'"
    for row, reason in ((2, "its 'id' is 'd4', not its id 'd3'"), (3, "not a JSON object")):
        with pytest.raises(Damaged, match=f"row {row + 1}: {reason}"):
            store.row(row)
    path.write_text('{"q1": {"d1": "2", "d2": 1.5}, "q2": {}}')
    store = open_store([path], json_qrels_reader(path, "q", "d", "s"))
    pairs = [{"q": "q1", "d": "d1", "s": "2"}, {"q": "q1", "d": "d2", "s": 1.5}]
    assert [store.row(n) for n in range(3)] == [*pairs, {"q": "q2", "s": 0}]
    assert store.place(2) == f"{path}, query 'q2'"
