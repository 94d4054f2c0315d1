"""What --data opens, and which columns it asks for."""

from pathlib import Path

import pytest

from big_retrieval.errors import UserError
from big_retrieval.explain.examples import open_data
from tests.helpers import lexical_texts, tiny


def test_a_file_of_texts_needs_no_images_and_no_captions(tmp_path: Path) -> None:
    (tmp_path / "queries.tsv").write_text("id\tquery\nq1\tred circle\nq2\tblue star\n")
    changes = lexical_texts()
    changes["fields"]["query"]["column"] = changes["fields"]["document"]["column"] = "query"
    source = open_data(tiny(**changes), str(tmp_path / "queries.tsv"))
    assert [source[index]["query"] for index in range(len(source))] == ["red circle", "blue star"]
    with pytest.raises(UserError, match="has no column 'image'"):
        open_data(tiny(), str(tmp_path / "queries.tsv"))
