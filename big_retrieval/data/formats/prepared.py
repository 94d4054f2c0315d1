"""Data sets of TensorFlow Datasets, prepared as ArrayRecord; TensorFlow is not needed."""

import functools
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.data.damage import first_line
from big_retrieval.data.formats.tables import Table, digest_of
from big_retrieval.data.sources import Record
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io.handles import ends_digest, open_reader, reopen, stamp_of

HINT = "prepare it once with `tfds build {} --file_format=array_record` (needs the network)"
INFO = "dataset_info.json"  # TFDS writes it into every prepared data set


class Prepared(Table):
    """The examples of a split; a nested feature `captions/text` is a column of that name.

    Only the prepared files are read, never the code that made them, which may want TensorFlow.

    Args:
      name: `coco_captions`, `imagenet2012:5.1.0`, ...; "" where `folder` is that of one data set.
      split: `train`, `validation[:10%]`, ...
      folder: TFDS's data_dir; "": its default.
      image: the image feature, which is not decoded; "": none.

    Raises:
      UserError: it is not prepared on this machine, or has no such split or feature.
    """

    def __init__(self, name: str, split: str, folder: str, image: str):
        self._made = (name, split, folder, image)
        os.environ.setdefault("TFDS_DISABLE_PROGRESS_BARS", "1")
        import tensorflow_datasets as library

        tfds: Any = library  # it loads its parts when asked, which types cannot see

        place = _find(name, Path(folder or tfds.core.constants.DATA_DIR).expanduser())
        builder = tfds.builder_from_directory(place)
        features, splits = builder.info.features, builder.info.splits
        self.name = f"{builder.info.name}-{split}"
        if not isinstance(features, tfds.features.FeaturesDict):
            raise UserError(f"{place} has one value an example, not named features.")
        if image and image not in features:
            known = ", ".join(sorted(features.keys()))
            raise UserError(f"{place} has no feature {image!r}; it has {known}.")
        if split.split("[")[0] not in splits:
            raise UserError(f"{place} has no split {split!r}; it has {', '.join(sorted(splits))}.")
        skip: Any = {image: tfds.decode.SkipDecoding()} if image else None
        try:
            self._source: Any = builder.as_data_source(split, decoders=skip)
        except (ValueError, NotImplementedError, AssertionError) as problem:
            raise UserError(
                f"{place}: {first_line(problem)}; {HINT.format(builder.name)}."
            ) from None
        files = self._source.data_source
        files._readers = _Readers(files._paths)
        self.classes = {
            key: tuple(feature.names)
            for key, feature in features.items()
            if isinstance(feature, tfds.features.ClassLabel) and feature.names
        }
        self.columns = frozenset(_flat_names(features))

    def __reduce__(self) -> tuple[Any, ...]:
        return Prepared, self._made

    def __len__(self) -> int:
        return len(self._source)

    def place(self, index: int) -> str:
        return f"{self.name}, example {index}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        try:
            example = self._source[index]
        except UserError:
            raise
        except Exception as problem:  # of ArrayRecord, of protocol buffers or of a feature
            raise Damaged(self.place(index), f"it cannot be read ({first_line(problem)})") from None
        image = self._made[3]
        return {key: value if key == image else _text(value) for key, value in _flat(example)}

    @functools.cached_property
    def fingerprint(self) -> str:
        files = map(os.fspath, self._source.data_source._paths)
        ends = [(os.stat(file).st_size, ends_digest(file)) for file in files]
        return digest_of([self.name, len(self), *ends])


class _Readers:
    """Replaces array_record's list of readers, which all stay open."""

    def __init__(self, paths: Sequence[str]):
        self._files = [(os.fspath(path), stamp_of(path)) for path in paths]

    def __getitem__(self, index: int) -> Any:
        return reopen(open_reader, *self._files[index])


def _find(name: str, root: Path) -> Path:
    """The folder of a prepared data set; of several versions the newest."""
    name, _, version = name.partition(":")
    if (root / INFO).is_file():
        return root
    found = [path.parent for path in (root / name).glob(f"**/{INFO}")] if name else []
    found = [path for path in found if not version or path.name == version]
    if not found:
        wanted = " ".join(filter(None, (name, version)))
        raise UserError(f"TFDS's {wanted} is not prepared under {root}; {HINT.format(name)}.")
    if len({path.parent for path in found}) > 1:
        known = ", ".join(sorted({path.parent.relative_to(root).as_posix() for path in found}))
        raise UserError(f"TFDS's {name} is there in several configurations; name one of {known}.")
    return max(found, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])


def _flat_names(features: Any, prefix: str = "") -> list[str]:
    """The names of all features, those of nested ones with a slash."""
    names = []
    for key, feature in features.items():
        inner = getattr(feature, "feature", feature)  # of a sequence
        nested = hasattr(inner, "items")
        names += _flat_names(inner, f"{prefix}{key}/") if nested else [f"{prefix}{key}"]
    return names


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """A nested example as (name, value); a sequence of groups becomes a group of lists."""
    out = []
    for key, item in value.items():
        if isinstance(item, list | tuple) and item and isinstance(item[0], Mapping):
            item = {name: [each[name] for each in item] for name in item[0]}
        if isinstance(item, Mapping):
            out += _flat(item, f"{prefix}{key}/")
        else:
            out.append((f"{prefix}{key}", item))
    return out


def _text(value: Any) -> Any:
    """Bytes are UTF-8 texts here, as images are kept out."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list | tuple):
        return [_text(item) for item in value]
    item = getattr(value, "item", None)
    if item is not None and getattr(value, "ndim", 1) == 0:
        return _text(item())
    if isinstance(value, np.ndarray) and value.dtype.kind in "OS":
        return [_text(item) for item in value]
    return value
