"""Damaged records: counted, listed and replaced; too many of them end a run."""

import base64
import functools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from big_retrieval import config
from big_retrieval.data.batches import try_record
from big_retrieval.data.build import make_source
from big_retrieval.data.damage import Damage
from big_retrieval.data.formats.shards import convert
from big_retrieval.data.mixture import MixedSource
from big_retrieval.data.pipeline import Reading, eval_batches, train_batches
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.errors import Damaged, UserError
from tests.data.files import encoded, png_header, write_tar
from tests.readers import image_reader, text_reader

RECORDS, BAD = 24, 5
TOKENIZER = wordpiece_tokenizer(learn_wordpiece(["picture number 0 1 2 3 4 5 6 7 8 9"], 100))
FIELDS = {
    "image": image_reader("image", size=8, crop_scale=(0.5, 1.0), flip=0.5),
    "text": text_reader("captions", length=8, tokenizer=TOKENIZER),
}


def noise(number: int) -> Image.Image:
    rng = np.random.default_rng(number)
    return Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8))


@functools.cache
def picture(number: int) -> bytes:
    return encoded(noise(number))


JPEG = encoded(noise(0).resize((200, 160)), "JPEG")


def write(folder: Path, image: bytes | None = None, line: str | None = None) -> Any:
    """Returns pairs whose record BAD has this image or line."""
    folder.mkdir(exist_ok=True)
    lines = []
    for number in range(RECORDS):
        (folder / f"{number}.png").write_bytes(picture(number))
        lines.append(json.dumps({"image": f"{number}.png", "captions": f"picture {number}"}))
    if image is not None:
        (folder / f"{BAD}.png").write_bytes(image)
    if line is not None:
        lines[BAD] = line
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    return make_source(config.Pairs(path=str(folder / "pairs.jsonl")))


def read(source: Any, damage: Damage | None = None, **keys: Any) -> list[dict[str, Any]]:
    settings = {"batch_size": 8, "start_batch": 0, "stop_batch": 9, **keys}
    rows = settings.pop("rows", np.arange(8))
    how = {name: settings.pop(name) for name in ("threads", "workers") if name in settings}
    reading = Reading(**{"threads": 1, **how}, damage=damage)
    order = source.order(0)
    return list(
        train_batches(source, fields=FIELDS, order=order, rows=rows, reading=reading, **settings)
    )


def has_same_row(a: dict[str, Any], b: dict[str, Any], row: int) -> bool:
    return (
        a["record"][row] == b["record"][row]
        and np.array_equal(a["image"]["pixels"][row], b["image"]["pixels"][row])
        and np.array_equal(a["text"]["ids"][row], b["text"]["ids"][row])
    )


def record(**changes: Any) -> str:
    return json.dumps({"image": f"{BAD}.png", "captions": "a"} | changes)


IMAGES = {  # name -> content of an image file, pattern of the reason
    "zero bytes": (b"", "empty"),
    "text": (b"this is no image at all", "known format"),
    "HTML": (b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>", "HTML"),
    "XML": (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "known format"),
    "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "known format"),
    "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "known format"),
    "PDF": (b"%PDF-1.4\n%%EOF", "known format"),
    "PNG that is cut in its header": (b"\x89PNG\r\n\x1a\n1234", "not a"),
    "cut JPEG": (JPEG[: len(JPEG) // 2], "truncated"),
    "JPEG cut in its header": (JPEG[:30], "readable"),
    "cut PNG": (encoded(noise(1))[:200], "truncated"),
    "cut GIF": (encoded(noise(1), "GIF")[:300], "image"),
    "cut WebP": (encoded(noise(1), "WEBP")[:100], "readable"),
    "PNG with a damaged chunk": (encoded(noise(1)).replace(b"IDAT", b"IDAX"), "image"),
    "1 x 1": (encoded(Image.new("RGB", (1, 1))), "1 x 1 pixels, too small"),
    "20,000 x 20,000": (png_header(20_000, 20_000), "megapixels"),
    "10,000 x 10,000": (png_header(10_000, 10_000), "megapixels"),
    "1 x 5,000": (png_header(1, 5_000), "100 times as long"),
    "no pixels": (png_header(0, 7), "format"),
    "PNG without its pixels": (png_header(900, 900), "truncated|readable"),
    "gzip": (b"\x1f\x8b\x08\x00" + bytes(40), "known format"),
    "random bytes": (np.random.default_rng(0).bytes(4000), "known format"),
}  # fmt: skip
LINES = {  # name -> line of the JSONL file, pattern of the reason
    "missing file": (record(image="nowhere.png"), "cannot be read"),
    "a folder": (record(image="."), "cannot be read"),
    "an address": (record(image="https://a.b/c.jpg"), "address"),
    "no image": (json.dumps({"captions": "a"}), "None"),
    "image null": (record(image=None), "None"),
    "image a number": (record(image=3), "is 3"),
    "zero byte in a path": (record(image="a\0b"), "the image .* cannot be read"),
    "base64": (record(image=base64.b64encode(picture(1) * 9).decode()), "cannot be read"),
    "ragged pixels": (record(image=[[1, 2], [3]]), "the image is a list"),
    "pixels above 255": (record(image=[[[300, 0, 0]]]), "the image is a list"),
    "nested too deeply": ("[" * 100_000, ""),
    "wrong column": (json.dumps({"image": "0.png", "caption": "a"}), "no 'captions'"),
    "empty caption": (record(captions=""), "no text"),
    "blank captions": (record(captions=[" ", "\n\t"]), "no text"),
    "no captions": (record(captions=[]), "no text"),
    "caption null": (record(captions=None), "no .captions."),
    "caption a number": (record(captions=1.5), "1.5"),
    "not JSON": ("{'image': 5}", "not JSON"),
    "cut line": (record()[:12], "not JSON"),
    "a list": ("[1]", "no.* object"),
    "zero bytes in a line": ("\0\0\0", "not JSON"),
}
GOOD_IMAGES = {
    "grey": encoded(noise(3).convert("L")),
    "16 bits": encoded(Image.fromarray(np.full((9, 9), 40_000, np.uint16))),
    "palette": encoded(noise(3).convert("P")),
    "palette with transparency": encoded(noise(3).convert("P"), transparency=3),
    "alpha": encoded(noise(3).convert("RGBA")),
    "grey with alpha": encoded(noise(3).convert("LA")),
    "black and white": encoded(noise(3).convert("1")),
    "CMYK": encoded(noise(3).convert("CMYK"), "JPEG"),
    "progressive": encoded(noise(3), "JPEG", progressive=True),
    "animation": encoded(noise(3), "GIF", save_all=True, append_images=[noise(4)]),
    "bytes behind the end": JPEG + bytes(500),
    "TIFF": encoded(noise(3), "TIFF"),
    "BMP": encoded(noise(3), "BMP"),
    "WebP": encoded(noise(3), "WEBP"),
    "2 x 100": encoded(Image.new("RGB", (2, 100))),
}
GOOD_LINES = {
    "10,000 characters": record(captions="word " * 2000),
    "one word of 10,000 characters": record(captions="x" * 10_000),
    "control characters": record(captions="a\x00b\x1b[31m\u202ec"),
    "lone surrogate": '{"image": "5.png", "captions": "\\ud83d"}',
    "scripts": record(captions="\u65e5\u672c \u0627\u0644 \u0e44\u0e17 \U0001f469\u200d\U0001f680"),
    "some captions empty": record(captions=["", "picture", None]),
    "a duplicate id": record(id="pairs-000004"),
}  # fmt: skip


@pytest.fixture(scope="module")
def clean_batches(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Batches without damage."""
    return read(write(tmp_path_factory.mktemp("whole") / "data"))


def write_cases(folder: Path, cases: list[tuple[bytes | None, str | None]]) -> Any:
    """Returns `RECORDS` pairs followed by a pair per image or line; None for the default."""
    write(folder)
    lines = (folder / "pairs.jsonl").read_text().splitlines()
    for number, (image, line) in enumerate(cases, RECORDS):
        (folder / f"{number}.png").write_bytes(picture(number) if image is None else image)
        plain = {"image": f"{number}.png", "captions": f"picture {number}"}
        lines.append(json.dumps(plain) if line is None else line)
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    return make_source(config.Pairs(path=str(folder / "pairs.jsonl")))


def test_damage_is_counted_and_replaced(tmp_path):
    images = [(name, image, None, word) for name, (image, word) in IMAGES.items()]
    cases = images + [(name, None, line, word) for name, (line, word) in LINES.items()]
    damage = Damage(tmp_path / "damaged.jsonl", 1.0)
    broken = write_cases(tmp_path / "broken", [case[1:3] for case in cases])
    whole = write_cases(tmp_path / "whole", [(None, None)] * len(cases))
    hits = 0
    for found, clean in zip(
        read(broken, damage, stop_batch=16), read(whole, stop_batch=16), strict=True
    ):
        for row in range(8):
            if clean["record"][row] >= RECORDS:
                assert found["record"][row] < RECORDS
                hits += 1
            else:
                assert has_same_row(found, clean, row)
    assert hits > len(cases)  # some of them twice, in two epochs, but named once
    named = [json.loads(text) for text in (tmp_path / "damaged.jsonl").read_text().splitlines()]
    assert damage.count == len(named) == len(cases)
    by_record = {each["record"]: each for each in named}
    for number, (name, _, _, word) in enumerate(cases, RECORDS):
        assert by_record[number]["place"].split(", ")[1] == f"line {number + 1}"
        assert re.search(word, by_record[number]["why"]), name


def test_odd_but_usable_records_are_used(tmp_path):
    cases = [(image, None) for image in GOOD_IMAGES.values()]
    cases += [(None, line) for line in GOOD_LINES.values()]
    damage, count = Damage(None, 0.0), RECORDS + len(cases)
    found = read(write_cases(tmp_path, cases), damage, stop_batch=-(-count // 8))
    assert damage.count == 0
    assert {*range(count)} == {record for batch in found for record in batch["record"].tolist()}


def test_replacement_depends_only_on_position(clean_batches, tmp_path):
    source = write(tmp_path, b"")
    wanted = read(source, Damage(None, 1.0))
    hit = any(BAD in batch["record"][3:] for batch in clean_batches[4:])
    for reading in ({"threads": 2}, {"threads": 0}, {"workers": 1, "threads": 1}):
        damage = Damage(None, 0.5)
        parts = read(source, damage, start_batch=4, rows=np.arange(3, 8), **reading)
        for part, batch in zip(parts, wanted[4:], strict=True):
            for key in ("record", "valid"):
                np.testing.assert_array_equal(part[key], batch[key][3:])
            np.testing.assert_array_equal(part["image"]["pixels"], batch["image"]["pixels"][3:])
        assert damage.count == int(hit)


def test_damaged_replacement_is_replaced(tmp_path):
    source = write(tmp_path)
    for number in range(RECORDS - 6):
        (tmp_path / f"{number}.png").write_bytes(b"")
    found = read(source, Damage(None, 1000.0), stop_batch=2)
    assert all((batch["record"] >= RECORDS - 6).all() for batch in found)


def test_too_many_damaged_records_end_the_run(tmp_path):
    source = write(tmp_path)
    for number in (3, 9, 11):
        (tmp_path / f"{number}.png").write_bytes(b"")
    (tmp_path / "4.png").unlink()
    damage = Damage(tmp_path / "damaged.jsonl", 0.01)
    with pytest.raises(UserError) as problem:
        read(source, damage, stop_batch=100)
    text = str(problem.value)
    lost = int(text.split(" of ")[0])
    assert 10 < lost <= 18  # more than 1% of a thousand, as soon as the batch is through
    assert "config.loader.max_damaged 0.01" in text
    assert "3 x the image is empty" in text
    assert "1 x the image '4.png' cannot be read" in text
    assert str(tmp_path / "damaged.jsonl") in text
    assert len((tmp_path / "damaged.jsonl").read_text().splitlines()) == 4


def test_damage_count_survives_interruption(tmp_path):
    source, file = write(tmp_path, b""), tmp_path / "damaged.jsonl"
    read(source, Damage(file, 1.0))
    file.write_text(file.read_text() + '{"record": 3, "pla')
    again = Damage(file, 1.0)
    assert again.count == 1
    read(source, again)
    assert again.count == 1
    assert len(file.read_text().splitlines()) == 2


def test_try_record_rejects_source_without_usable_record(tmp_path):
    source = write(tmp_path)
    for number in range(RECORDS):
        try_record(source, FIELDS)  # the first records may be damaged
        (tmp_path / f"{number}.png").write_bytes(b"")
    with pytest.raises(UserError, match=f"no usable record among its first {RECORDS}; the first"):
        try_record(source, FIELDS)
    with pytest.raises(UserError, match="100 records in a row are damaged"):
        read(source, Damage(None, 1.0))


def test_evaluation_keeps_row_of_damaged_image_or_raises(tmp_path):
    source, damage = write(tmp_path, b"no image"), Damage(None, 0.1)
    (found,) = eval_batches(
        source, FIELDS, field="image", batch_size=RECORDS, reading=Reading(damage=damage)
    )
    assert found["valid"].all()
    assert (found["image"]["pixels"][BAD] == 0).all()
    assert (found["image"]["pixels"][BAD + 1] != 0).any()
    assert damage.count == 1
    with pytest.raises(Damaged, match=r"line 6, 5.png: the image is not an image"):
        list(eval_batches(source, FIELDS, field="image", batch_size=RECORDS))


def test_evaluation_skips_records_without_text(tmp_path):
    source, lenient = write(tmp_path, line=record(captions="")), Reading(damage=Damage(None, 0.1))
    (found,) = eval_batches(source, FIELDS, field="text", batch_size=32, reading=lenient)
    assert sorted(found["record"][found["valid"]]) == [i for i in range(RECORDS) if i != BAD]


def test_replacement_comes_from_same_part_of_mixture(tmp_path):
    parts = {"a": write(tmp_path / "a", b""), "b": write(tmp_path / "b")}
    found = read(MixedSource(parts, {"a": 0.9, "b": 0.1}), Damage(None, 1.0), stop_batch=20)
    of_a = np.concatenate([batch["record"] for batch in found]) < RECORDS
    assert 0.85 < of_a.mean() < 0.95


def shards(folder: Path) -> Any:
    convert(write(folder), folder / "shards", shard_records=8, origin={}, max_damaged=0.0)
    return make_source(config.Pairs(path=str(folder / "shards")))


def parquet(folder: Path) -> Any:
    columns = {
        "image": [encoded(noise(i)) for i in range(RECORDS)],
        "captions": [f"picture {i}" for i in range(RECORDS)],
    }
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / "pairs.parquet", row_group_size=6)
    return make_source(config.Pairs(path=str(folder / "pairs.parquet")))


def tar(folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    for part in range(2):
        members = [
            (f"{number:04d}.{ending}", data)
            for number in range(part * 12, part * 12 + 12)
            for ending, data in (("png", encoded(noise(number))), ("txt", b"picture"))
        ]
        write_tar(folder / f"{part}.tar", members)
    return make_source(config.Tar(path=str(folder / "*.tar")))


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def test_truncated_tar_keeps_complete_samples(tmp_path, capsys):
    tar(tmp_path)
    halve(tmp_path / "1.tar")
    source = make_source(config.Tar(path=str(tmp_path / "*.tar")))
    assert 12 < len(source) < 20
    assert "1.tar is cut short: its first" in capsys.readouterr().err
    read(source, Damage(None, 0.0))


def test_non_tar_shard_is_one_damaged_record(tmp_path, capsys):
    tar(tmp_path)
    (tmp_path / "0.tar").write_bytes(b"<html>")
    assert len(make_source(config.Tar(path=str(tmp_path / "*.tar")))) == 13
    assert "1 of 13 rows cannot be read, the first: " in capsys.readouterr().err
    (tmp_path / "1.tar").write_bytes(b"")
    with pytest.raises(UserError, match="none of 2 rows can be read: sample 1, not a tar file"):
        make_source(config.Tar(path=str(tmp_path / "*.tar")))


def test_truncated_array_record_damages_its_records(tmp_path):
    shards(tmp_path)
    halve(tmp_path / "shards" / "part-00001-of-00003.array_record")
    source = make_source(config.Pairs(path=str(tmp_path / "shards")))
    assert len(source) == RECORDS
    damage = Damage(None, 1.0)
    found = read(source, damage)
    assert damage.count == 8
    assert not any(8 <= number < 16 for batch in found for number in batch["record"])


def test_damaged_row_group_damages_its_rows(tmp_path):
    parquet(tmp_path)
    path = tmp_path / "pairs.parquet"
    data = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data[start : start + 200] = bytes(200)
    path.write_bytes(data)
    damage = Damage(None, 1.0)
    read(make_source(config.Pairs(path=str(path))), damage)
    assert damage.count == 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: (f / "a.csv").write_text("image,captions\n0.png,a,b\n"), "none of 1 rows"),
        (lambda f: (f / "a.parquet").write_text("PAR1"), "as Parquet"),
        (lambda f: (f / "a.npz").write_text("PK"), "as .npz file"),
        (lambda f: np.savez(f / "a.npz", a=np.zeros(2), b=np.zeros(3)), "one length"),
        (lambda f: np.savez(f / "a.npz", a=np.array([{}])), "plain arrays"),
    ],
)  # fmt: skip
def test_pairs_rejects_completely_damaged_files(
    tmp_path: Path, make: Callable[[Path], Any], message: str
):
    make(tmp_path)
    (path,) = tmp_path.iterdir()
    (tmp_path / "0.png").write_bytes(encoded(noise(0)))
    with pytest.raises(UserError, match=message):
        try_record(make_source(config.Pairs(path=str(path))), FIELDS)


def test_damage_on_full_disk_warns_once_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    class Full:
        name = "damaged.jsonl"

        def exists(self) -> bool:
            return False

        def open(self, mode: str) -> Any:
            return Path("/dev/full").open(mode, buffering=1)

    damage = Damage(Full(), 0.5)  # type: ignore[arg-type]
    for number in range(3):
        damage.saw(100, [(number, f"pairs.jsonl, line {number}", "cut short")])
    assert damage.metrics() == {"damaged": 3}
    said = capsys.readouterr().err
    assert said == (
        "warning: damaged.jsonl is not written (No space left on device); the run continues\n"
    )
