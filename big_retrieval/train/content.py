"""Fingerprints of what training reads, which a resumed run must find again (`resume.py`)."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax

from big_retrieval.data.damage import record_at
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.images.decoding import Encoded
from big_retrieval.data.sources import RecordSource, evenly_spaced, place_of
from big_retrieval.errors import Damaged
from big_retrieval.runtime import distributed
from big_retrieval.train.resume import IMAGES, TEXTS

SAMPLED = 32  # records whose texts and image files are compared


def fingerprints(readers: Mapping[str, FieldReader], source: RecordSource) -> dict[str, str]:
    """Returns fingerprints by name: of the files of each field, of some texts and of some images.

    The first process computes them for all, as each may read hundreds of MiB of a shared disk.
    """
    first = jax.process_index() == 0
    found = {name: reader.fingerprint() if first else "" for name, reader in readers.items()}
    found[TEXTS] = _some_texts(readers, source) if first else ""
    found[IMAGES] = _some_images(readers, source) if first else ""
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


def _some_images(readers: Mapping[str, FieldReader], source: RecordSource) -> str:
    """Returns a digest of the image files of evenly spaced records; "" if they have none."""
    fields = [reader.field for reader in readers.values() if reader.field.modality == "image"]
    digest, count = hashlib.sha256(), 0
    for index in evenly_spaced(len(source), SAMPLED).tolist() if fields else ():
        try:
            with record_at(place_of(source, index)):
                record = source[index]
                images = [record.get(field.column) for field in fields]
        except Damaged:
            continue
        for image in images:
            if isinstance(image, Encoded):
                digest.update(hashlib.sha256(image.data).digest())
                count += 1
    return digest.hexdigest() if count else ""
