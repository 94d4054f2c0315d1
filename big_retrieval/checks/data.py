"""Checks of the data and the loader; see `big_retrieval.checks`."""

import importlib.util
from collections.abc import Iterator

from big_retrieval.checks import graded, texts
from big_retrieval.config import (
    Config,
    Graded,
    GradedScenes,
    Mixture,
    Pairs,
    Scenes,
    Source,
    Tfds,
)

LIMIT = 2**31  # steps and seeds are 32-bit integers on the devices
MOST_SCENES = 10_000_000  # their parameters are held in memory
SCENE_COLUMNS = {"image": "image", "text": "captions"}  # modality of a field -> column
SCENE_LABELS = {"colours": ("colour", 8), "shapes": ("shape", 8)}  # split -> column, classes


def data(c: Config) -> Iterator[str]:
    """What is wrong with `config.data`, a sentence each."""
    yield from _source("config.data", c.data)
    for name, ev in c.evals.items():
        if ev.data is not None:
            yield from _source(f"config.evals.{name}.data", ev.data)
    for name, field in c.fields.items():
        path = f"config.fields.{name}.column"
        column = SCENE_COLUMNS.get(field.modality)
        if isinstance(c.data, Scenes) and column and field.column != column:
            yield f"{path} is {field.column!r}; generated scenes have theirs in {column!r}."
    yield from graded.columns(c)
    yield from texts.columns(c)
    t = c.tokenizer
    if not t.path and t.type != "wordpiece":
        yield (
            f"config.tokenizer.type {t.type!r} needs config.tokenizer.path (a file, folder or hub "
            "name); only 'wordpiece' can be learned from the captions."
        )
    if not t.path and t.vocab_size < 6:
        yield f"config.tokenizer.vocab_size is {t.vocab_size}; a learned one needs at least 6."


def _source(path: str, source: Source) -> Iterator[str]:
    if isinstance(source, Mixture):
        yield from _mixture(path, source)
    elif isinstance(source, Scenes):
        yield from _scenes(path, source)
    elif isinstance(source, GradedScenes):
        yield from graded.graded_scenes(path, source)
    elif isinstance(source, Tfds):
        if not source.name and not source.folder:
            yield f"{path}.name is empty; give that of a TFDS data set, or its folder."
    elif not source.path:
        kind = {
            "pairs": "file with your pairs",
            "tar": "shards",
            "karpathy": "split file",
            "graded": "file with your judged pairs",
            "beir": "folder with corpus.jsonl, queries.jsonl and qrels",
            "dpr": "file with questions and passages",
            "triples": "file with triples",
        }
        yield f"{path}.path is empty; give the {kind[source.type]}."
    if isinstance(source, Pairs):
        yield from _pairs(path, source)
    if isinstance(source, Graded):
        yield from graded.graded(path, source)
    yield from texts.texts(path, source)


def _pairs(path: str, source: Pairs) -> Iterator[str]:
    if not source.image and not source.text:
        yield f"{path}.image and {path}.text are both empty; name at least one column."
    if bool(source.join) != bool(source.on):
        yield f"{path}.join and {path}.on go together: a file, and the column that both files have."
    for term in source.where:
        if not term.partition("=")[0] or "=" not in term:
            yield f"{path}.where has {term!r}; write column=value, such as split=train."


def _mixture(path: str, source: Mixture) -> Iterator[str]:
    if not source.parts:
        yield f"{path}.parts is empty; give it at least one source."
    weights = {name: part.weight for name, part in source.parts.items()}
    without = [name for name, weight in weights.items() if weight is None]
    if without and len(without) < len(weights):
        yield f"{path}.parts.{without[0]}.weight is None; give all parts a weight, or none."
    for name, weight in weights.items():
        if weight is not None and weight <= 0:
            yield f"{path}.parts.{name}.weight is {weight}; it must be above 0."
        yield from _source(f"{path}.parts.{name}.source", source.parts[name].source)


def _scenes(path: str, source: Scenes) -> Iterator[str]:
    if source.size < 16:
        yield f"{path}.size is {source.size}; shapes need at least 16 pixels to differ."
    if source.count is not None and not 1 <= source.count <= MOST_SCENES:
        yield f"{path}.count is {source.count}; it must be from 1 to {MOST_SCENES}, or None."
    if not 0 <= source.seed < LIMIT:
        yield f"{path}.seed is {source.seed}; it must be from 0 to {LIMIT - 1}."


def loader(c: Config) -> Iterator[str]:
    """What is wrong with `config.loader`, a sentence each."""
    for key, least in (("threads", 1), ("workers", 0), ("prefetch", 1)):
        value = getattr(c.loader, key)
        if value < least:
            yield f"config.loader.{key} is {value}; it must be at least {least}."
    if not 0 <= c.loader.max_damaged <= 1:
        yield f"config.loader.max_damaged is {c.loader.max_damaged}; it is a share from 0 to 1."
    if c.loader.decoder == "opencv" and importlib.util.find_spec("cv2") is None:
        yield (
            "config.loader.decoder is 'opencv', which is not installed; install the extra "
            "big_retrieval[opencv], or use 'pillow'."
        )
