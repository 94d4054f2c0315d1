"""Fingerprints of what training reads, which a resumed run must find again (`resume.py`)."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax

from big_retrieval.data.damage import record_at
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.sources import RecordSource, evenly_spaced, place_of
from big_retrieval.errors import Damaged
from big_retrieval.runtime import distributed
from big_retrieval.train.resume import TEXTS

SAMPLED = 32  # records whose texts are compared


def fingerprints(readers: Mapping[str, FieldReader], source: RecordSource) -> dict[str, str]:
    """Field -> fingerprint of what it reads beside the records; `TEXTS` -> that of some records.

    The first process computes them for all, as each may read hundreds of MiB of a shared disk.
    """
    first = jax.process_index() == 0
    found = {name: reader.fingerprint() if first else "" for name, reader in readers.items()}
    found[TEXTS] = _some_texts(readers, source) if first else ""
    if jax.process_count() > 1:
        found = {name: distributed.broadcast(seen) for name, seen in found.items()}
    return {name: seen for name, seen in found.items() if seen}


def _some_texts(readers: Mapping[str, FieldReader], source: RecordSource) -> str:
    """A digest of the texts of evenly spaced records, so that an edited file is noticed."""
    digest = hashlib.sha256()
    for index in evenly_spaced(len(source), SAMPLED).tolist():
        for name, reader in readers.items():
            if reader.field.modality != "text":
                continue
            try:
                with record_at(place_of(source, index)):
                    texts: Any = source_texts(source, index, reader)
            except Damaged:
                texts = None
            digest.update(json.dumps([index, name, texts]).encode())
    return digest.hexdigest()
