"""fine_tuned.py on a few made-up texts."""

import json
from pathlib import Path

import pytest

from big_retrieval.exporting.certificate import TOLERANCE
from tests.interop import export_all, fine_tuned


def medquad(root: Path) -> str:
    """A folder of data in BEIR's form, with 12 questions and answers of training and test each."""
    folder = root / "medquad"
    (folder / "qrels").mkdir(parents=True)
    ids = range(24)
    documents = [{"_id": f"d{i}", "text": f"Rest {i} days, drink water {i}."} for i in ids]
    queries = [{"_id": f"q{i}", "text": f"what helps against illness {i}?"} for i in ids]
    for name, rows in {"corpus": documents, "queries": queries}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, rows in {"train": ids[:12], "test": ids[12:]}.items():
        lines = "".join(f"q{i}\td{i}\t1\n" for i in rows)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    return str(root)


@pytest.mark.slow
@pytest.mark.parametrize("method", fine_tuned.METHODS)
def test_sentence_transformers_encodes_as_we_do(method: str, tmp_path: Path) -> None:
    if fine_tuned.TO not in export_all.available(export_all.PYTHON):
        pytest.skip(f"{export_all.PYTHON} has no sentence-transformers")
    found = fine_tuned.differences(
        method, medquad(tmp_path), tmp_path, export_all.PYTHON, steps=3, batch=4, depth=1
    )
    assert {field: count for field, (count, _) in found.items()} == {"query": 12, "answer": 12}
    assert all(d is not None and d <= TOLERANCE for _, d in found.values()), found
