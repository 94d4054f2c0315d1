"""Opens cases as a config, as `train --data` and as `index --data` do."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

from big_retrieval import config as configs
from big_retrieval.auto_config.columns import DataFlags
from big_retrieval.auto_config.prepare import TrainingRequest, load_config, prepare
from big_retrieval.config import Config, recipe
from big_retrieval.config.checks import check
from big_retrieval.data.build import make_source
from big_retrieval.errors import UserError
from big_retrieval.retrieval.documents import DocumentReader, open_records, read_row
from tests.data.digests.cases import Case, Data, Documents
from tests.data.digests.digest import digest_batches, digest_rows, message_of
from tests.data.digests.files import SIDE


def lines_of(case: Case) -> dict[str, str]:
    """Returns kind -> digest of a case, "refused" -> error message, or "crashed" -> exception."""
    for name, content in case.files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        if isinstance(case.opens, Data):
            return lines_of_data(case.opens)
        if isinstance(case.opens, Documents):
            return {"documents": digest_rows(DocumentRows(case.opens.path))}
        return lines_of_source(case)
    except UserError as problem:
        return {"refused": message_of(problem)}
    except csv.Error:  # its message differs between versions of Python
        return {"crashed": "csv.Error"}


def lines_of_source(case: Case) -> dict[str, str]:
    """Returns the digests of all rows, and of batches if the case names columns."""
    source = make_source(case.opens)
    lines = digests_of_rows("rows", source)
    if not case.columns:
        return lines
    config = dataclasses.replace(
        configs.load(recipe.base()),
        data=case.opens,
        fields=fields_of(case.columns),
        negatives=configs.HardNegatives(count=case.negatives),
        batch_size=4,
    )
    return lines | digest_batches(config, source, source)


def digests_of_rows(name: str, source: Any, columns: Any = None) -> dict[str, str]:
    """Returns the digest of a source, and of the queries and documents of judged pairs."""
    sides = [side for side in ("queries", "documents") if hasattr(source, side)]
    lines = {f"{name} {side}": digest_rows(getattr(source, side), columns) for side in sides}
    return {name: digest_rows(source, columns), **lines}


def fields_of(columns: tuple[str, ...]) -> dict[str, Any]:
    """Returns a field for every column, the first one of queries."""
    sides, fields = ("query", "document", "document"), {}
    for column, side in zip(columns, sides, strict=False):
        if column == "image":
            field: Any = configs.ImageField(side=side, size=SIDE, crop_scale=(1.0, 1.0))
        else:
            field = configs.TextField(side=side, column=column, length=16)
        fields[column] = field
    return fields


def lines_of_data(data: Data) -> dict[str, str]:
    """Returns the digests of every split that `train --data` makes, and of its batches.

    Rows have the columns that the config reads. Their images are neither resized nor cropped.
    """
    config = load_config(prepare(TrainingRequest(data.path, DataFlags(**data.flags)), Path("run")))
    check(config)
    columns = columns_of(config)
    fields = {
        name: dataclasses.replace(field, size=SIDE, crop_scale=(1.0, 1.0))
        if field.modality == "image"
        else field
        for name, field in config.fields.items()
    }
    parts = {"train": config.data} | {x: part.data for x, part in config.evals.items()}
    sources: dict[str, Any] = {x: make_source(part) for x, part in parts.items() if part}
    lines = {
        key: line
        for name, source in sources.items()
        for key, line in digests_of_rows(f"rows of {name}", source, columns).items()
    }
    config = dataclasses.replace(config, fields=fields, batch_size=8)
    return lines | digest_batches(config, sources["train"], sources["validation"])


def columns_of(config: Config) -> set[str]:
    """Returns the columns that fields, negatives and labels of a config read."""
    columns = {x for field in config.fields.values() for x in field.columns().values()}
    labels = config.labels
    named = {labels.query, labels.document, labels.score, config.negatives.column}
    return {*columns, *named, "query_id", "document_id"}


class DocumentRows:
    """Documents as `index` reads them: id, values of fields and the shown text."""

    def __init__(self, path: str):
        reader = DocumentReader("documents", {"text": ("text",)}, from_config=True)
        self._records, self._reader = open_records("data", path, reader)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns a document.

        Raises:
          Damaged: it cannot be used.
        """
        row = read_row(self._records, self._reader, index)
        return {"id": row.id, "values": row.values, "shown": row.shown}
