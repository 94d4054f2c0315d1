"""The cases of the fuzzer: case `number` is a pure function of (seed, number).

Nine of ten cases are image files with some bytes changed, the others are texts and lines of tables.
A case fails by any exception except `ValueError` (which `decoding` may raise) or `UserError`.
"""

import atexit
import functools
import random
import shutil
import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np

from big_retrieval import config
from big_retrieval.data.batches import RecordSpec, train_batch
from big_retrieval.data.fields.labels import read_labels
from big_retrieval.data.fields.reader import stack
from big_retrieval.data.fields.texts import TextReader
from big_retrieval.data.formats.open_files import file_table
from big_retrieval.data.formats.records import Records
from big_retrieval.data.images import decoding
from big_retrieval.data.negatives import read_negatives
from big_retrieval.data.order import Order
from big_retrieval.data.sources import as_texts
from big_retrieval.data.stores.json_files import parse_object
from big_retrieval.data.text import tokenizers
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.errors import Damaged, UserError
from tests.fuzz import corpus
from tests.readers import text_reader

NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
LABELS = config.PairLabels(query="query_id", score="score", s_max=5.0)
WORDS = ["a red circle left of blue square half pair other e Z x c t"]


def case(seed: int, number: int) -> tuple[str, bytes]:
    """The kind of a case ("image", "text", "line", "table") and its bytes."""
    rng = random.Random(f"{seed}/{number}")
    kind = rng.choices(("image", "text", "line", "table"), (90, 5, 4.5, 0.5))[0]
    seeds = _seeds(kind)
    if kind == "image":
        return kind, mutated_image(rng, seeds[rng.randrange(len(seeds))], seeds)
    data = rng.choice(seeds)
    for _ in range(rng.randint(1, 4)):
        data = rng.choice(MUTATIONS)(rng, data, seeds)
    if kind == "table":
        rows = [rng.choice(seeds) for _ in range(rng.randint(0, 3))]
        data = rng.choice([b"\n", b"\r\n", b",", b'"']).join([b"captions,score", data, *rows])
    return kind, data[:100_000]


def run(kind: str, data: bytes, number: int = 0) -> bool:
    """Runs the code of a training run on a case; returns True if the data were usable."""
    try:
        RUN[kind](data, number)
    except UserError:
        return False
    except ValueError:
        if kind != "image":
            raise
        return False
    return True


def mutated_image(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    """An image file with some bytes changed; most PNG checksums are corrected."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        data = rng.choice(MUTATIONS)(rng, data, files)
    if data.startswith(b"\x89PNG") and rng.random() < 0.7:
        data = _checked(data)
    return data


def _flip(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    out = bytearray(data or b"\0")
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        out[_place(rng, len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _set(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    out = bytearray(data or b"\0")
    out[_place(rng, len(out))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(out)


def _number(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    value = rng.choice((*NUMBERS, len(data), rng.getrandbits(32)))
    form = rng.choice((">H", "<H", ">I", "<I"))
    part = struct.pack(form, value & (0xFFFF if form[1] == "H" else 0xFFFFFFFF))
    at = _place(rng, max(1, len(data)))
    return data[:at] + part + data[at + len(part) :]


def _cut(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _drop(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    at = _place(rng, max(1, len(data)))
    return data[:at] + data[at + rng.choice((1, 2, 4, 12, 64)) :]


def _repeat(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    at, length = _place(rng, max(1, len(data))), rng.choice((1, 4, 12, 64, 256))
    return data[:at] + data[at : at + length] * rng.choice((2, 3, 50)) + data[at + length :]


def _insert(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    at = _place(rng, max(1, len(data)))
    return data[:at] + rng.randbytes(rng.choice((1, 2, 4, 32))) + data[at:]


def _splice(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    other = rng.choice(files)
    at, start = _place(rng, max(1, len(data))), rng.randrange(len(other) + 1)
    part = other[start : start + rng.choice((4, 16, 64, 1000))]
    return data[:at] + part + data[at + rng.choice((0, len(part))) :]


MUTATIONS = (_flip, _flip, _set, _set, _number, _number, _cut, _drop, _repeat, _insert, _splice)


def _place(rng: random.Random, length: int) -> int:
    """An index, half of the time among the first 200 bytes, where headers are."""
    return rng.randrange(min(length, 200) if rng.random() < 0.5 else length)


def _checked(data: bytes) -> bytes:
    """A PNG file with correct checksums, as far as the chunks can be parsed."""
    out, at = bytearray(data), 8
    while at + 12 <= len(out):
        (length,) = struct.unpack_from(">I", out, at)
        end = at + 8 + length
        if end + 4 > len(out):
            break
        struct.pack_into(">I", out, end, zlib.crc32(out[at + 4 : end]))
        at = end + 4
    return bytes(out)


def _image(data: bytes, number: int) -> None:
    if number % 2:
        decoding.decode(data)
        return
    is_opencv = number % 4 and data.startswith(b"\xff\xd8")

    def choose(rows: int, columns: int) -> decoding.Box:
        return rows // 4, columns // 4, max(1, rows // 2), max(1, columns // 2)

    decoder = "opencv" if is_opencv else "pillow"
    np.asarray(decoding.decode_part(data, choose, 8, decoder=decoder))


def _text(data: bytes, number: int) -> None:
    text = data.decode("utf-8", ("replace", "surrogateescape")[number % 2])
    if number % 3 == 0:  # any code points
        values = struct.iter_unpack("<I", data[: len(data) // 4 * 4])
        text = "".join(chr(x % 0x110000) for (x,) in values)
    for spec in _specs():
        arrays = stack(spec, list(as_texts([text, "a"], "captions", "here")))
        assert arrays["ids"].shape[1] == spec.field.length


def _line(data: bytes, number: int) -> None:
    row, reason = parse_object(data)
    if reason is not None:
        raise Damaged("here", reason)
    read_labels(row, LABELS, "here")
    read_negatives(row.get("negatives"), "negatives", "here")
    spec = _specs()[0]
    stack(spec, list(as_texts(row.get("captions"), "captions", "here")))


def _table(data: bytes, number: int) -> None:
    path = _folder() / ("fuzz.jsonl" if number % 2 else "fuzz.csv")
    path.write_bytes(data)
    source = Records(file_table(path), image=())
    spec = RecordSpec({"text": _specs()[0]}, config.PairLabels(score="score", s_max=5.0))
    train_batch(source, spec, Order(len(source), 0), 4, np.arange(4), 0)


RUN = {"image": _image, "text": _text, "line": _line, "table": _table}


@functools.cache
def _seeds(kind: str) -> list[bytes]:
    if kind == "image":
        return list(corpus.images().values())
    if kind == "text":
        return [text.encode("utf-8", "surrogatepass") for text in corpus.texts()]
    return corpus.lines()


@functools.cache
def _folder() -> Path:
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="fuzz-", dir=memory if memory.is_dir() else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@functools.cache
def _specs() -> list[TextReader]:
    """Text fields with a WordPiece tokenizer and CLIP's."""
    merges = ["r e", "re d</w>", "c i", "l e", "f t</w>", "le ft</w>", "s q", "e x"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "merges.txt"
        path.write_text("\n".join(["#version: 0.2", *merges]))
        clip = tokenizers.clip_tokenizer(path, merges=len(merges))
    wordpiece = tokenizers.wordpiece_tokenizer(learn_wordpiece(WORDS, 120))
    return [text_reader("captions", length=24, tokenizer=x) for x in (wordpiece, clip)]
