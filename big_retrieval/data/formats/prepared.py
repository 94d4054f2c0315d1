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
    """Examples of a split; a nested feature is a column with a slash, such as `captions/text`.

    Reads the prepared files without the code of the data set, which may need TensorFlow.

    Args:
      name: `coco_captions`, `imagenet2012:5.1.0`, ...; empty if `folder` is a data set's folder.
      split: `train`, `validation[:10%]`, ...
      folder: TFDS's data_dir; empty for its default.
      image: image feature, which is not decoded; empty for none.
    """

    def __init__(self, name: str, split: str, folder: str, image: str):
        self._args = (name, split, folder, image)
        os.environ.setdefault("TFDS_DISABLE_PROGRESS_BARS", "1")
        import tensorflow_datasets as library

        tfds: Any = library  # it imports its modules lazily; type checkers miss them

        path = _find(name, Path(folder or tfds.core.constants.DATA_DIR).expanduser())
        builder = tfds.builder_from_directory(path)
        features, splits = builder.info.features, builder.info.splits
        self.name = f"{builder.info.name}-{split}"
        if not isinstance(features, tfds.features.FeaturesDict):
            raise UserError(f"{path} has no named features.")
        if image and image not in features:
            names = ", ".join(sorted(features.keys()))
            raise UserError(f"{path} has no feature {image!r}; it has {names}.")
        if split.split("[")[0] not in splits:
            raise UserError(f"{path} has no split {split!r}; it has {', '.join(sorted(splits))}.")
        skip: Any = {image: tfds.decode.SkipDecoding()} if image else None
        try:
            self._source: Any = builder.as_data_source(split, decoders=skip)
        except (ValueError, NotImplementedError, AssertionError) as error:
            raise UserError(f"{path}: {first_line(error)}; {HINT.format(builder.name)}.") from None
        files = self._source.data_source
        files._readers = _Readers(files._paths)
        self.classes = {
            key: tuple(feature.names)
            for key, feature in features.items()
            if isinstance(feature, tfds.features.ClassLabel) and feature.names
        }
        self.columns = frozenset(_flat_names(features))

    def __reduce__(self) -> tuple[Any, ...]:
        return Prepared, self._args

    def __len__(self) -> int:
        return len(self._source)

    def place(self, index: int) -> str:
        return f"{self.name}, example {index}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        try:
            example = self._source[index]
        except UserError:
            raise
        except Exception as error:  # of ArrayRecord, of protocol buffers or of a feature
            raise Damaged(self.place(index), f"it cannot be read ({first_line(error)})") from None
        image = self._args[3]
        return {key: value if key == image else _to_plain(value) for key, value in _flat(example)}

    @functools.cached_property
    def fingerprint(self) -> str:
        files = map(os.fspath, self._source.data_source._paths)
        ends = [(os.stat(file).st_size, ends_digest(file)) for file in files]
        return digest_of([self.name, len(self), *ends])


class _Readers:
    """Replaces array_record's list of readers, which keeps all files open."""

    def __init__(self, paths: Sequence[str]):
        self._files = [(os.fspath(path), stamp_of(path)) for path in paths]

    def __getitem__(self, index: int) -> Any:
        return reopen(open_reader, *self._files[index])


def _find(name: str, root: Path) -> Path:
    """Returns the folder of a prepared data set, of the newest version by default."""
    name, _, version = name.partition(":")
    if (root / INFO).is_file():
        return root
    folders = [path.parent for path in (root / name).glob(f"**/{INFO}")] if name else []
    folders = [path for path in folders if not version or path.name == version]
    if not folders:
        label = " ".join(filter(None, (name, version)))
        raise UserError(f"TFDS's {label} is not prepared under {root}; {HINT.format(name)}.")
    if len({path.parent for path in folders}) > 1:
        choices = ", ".join(sorted({x.parent.relative_to(root).as_posix() for x in folders}))
        raise UserError(f"TFDS's {name} has several configurations; name one of {choices}.")
    return max(folders, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])


def _flat_names(features: Any, prefix: str = "") -> list[str]:
    """Returns the names of all features; names of nested features have a slash."""
    names = []
    for key, feature in features.items():
        inner = getattr(feature, "feature", feature)  # of a sequence
        is_nested = hasattr(inner, "items")
        names += _flat_names(inner, f"{prefix}{key}/") if is_nested else [f"{prefix}{key}"]
    return names


def _flat(example: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Returns (name, value) of a nested example; a sequence of groups becomes a group of lists."""
    pairs = []
    for key, value in example.items():
        if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            value = {name: [group[name] for group in value] for name in value[0]}
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{prefix}{key}/")
        else:
            pairs.append((f"{prefix}{key}", value))
    return pairs


def _to_plain(value: Any) -> Any:
    """Decodes bytes as UTF-8, and converts numpy scalars and arrays of texts."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if getattr(value, "ndim", 1) == 0 and hasattr(value, "item"):
        return _to_plain(value.item())
    is_texts = isinstance(value, np.ndarray) and value.dtype.kind in "OS"
    return [_to_plain(x) for x in value] if is_texts or isinstance(value, list | tuple) else value
