"""Files that are read wrongly, or by rules that one record decides: stores change each of them."""

from typing import Any

from big_retrieval.config import Beir, Pairs, Tar
from tests.data.digests.cases import Case, Data, Documents
from tests.data.digests.data_cases import ROWS, karpathy
from tests.data.digests.files import (
    SIDE,
    answer,
    caption,
    delimited,
    json_lines,
    pictures,
    png,
    png_file,
    question,
    tar,
    tiff_of_floats,
)

STRAY = ["id\ttext", "d1\ta plain line", 'd2\t"so it goes, he said', "d3\tan orange fox"]
STRAY += ['d4\tthe 12" vinyl', 'd5\tends here" she said', "d6\ta last line", ""]
UNCLOSED = [f"d{n},document number {n}\n" for n in range(60)]
UNCLOSED[9] = 'd9,"an opening quote\n'
ANSWERS = [f"{question(n)}\t{answer(n)}\n" for n in range(60)]
ANSWERS[12], ANSWERS[20] = '"quoted from the start\tanswer 12\n', 'asked 20\tends" here\n'
CAPTIONS = [f"{text}\t{file}\n" for file, text in ROWS]
CAPTIONS[4], CAPTIONS[9] = f'"{CAPTIONS[4]}', '5" wide\t9.png\n'
DOCUMENTS = [{"text": "no id here"}, {"_id": "x7", "text": "seven"}, {"_id": "x8", "text": "eight"}]


def untitled(at: int) -> dict[str, str]:
    """Returns a folder in BEIR's form whose document `at` has no title."""
    documents: list[Any] = [
        {"_id": f"d{n}", "title": f"t {n}", "text": answer(n)} for n in range(4)
    ]
    del documents[at]["title"]
    rows = [("query-id", "corpus-id", "score"), *((f"q{n}", f"d{n}", 1) for n in range(4))]
    return {
        "beir/corpus.jsonl": json_lines(documents),
        "beir/queries.jsonl": json_lines({"_id": f"q{n}", "text": question(n)} for n in range(4)),
        "beir/qrels/test.tsv": delimited(rows, "\t"),
    }


def five_captions() -> bytes:
    members: dict[str, Any] = {}
    for n in range(6):
        said = "\n".join(f"{caption(n)} by person {person}" for person in range(5))
        members |= {f"{n:05d}.png": png(n), f"{n:05d}.txt": said}
    return tar(members)


def dotted_names() -> bytes:
    members: dict[str, Any] = {}
    for n in range(12):
        key = f"22.{n:02d} take (v1.0)"
        members |= {f"{key}.png": png(n), f"{key}.txt": caption(n)}
    return tar(members)


def odd_pixels() -> dict[str, str | bytes]:
    """Returns grey ramps of floats with three maxima, and 16-bit grey with a transparent value."""
    ramp = [n / (SIDE**2 - 1) for n in range(SIDE**2)]
    files: dict[str, str | bytes] = {
        f"{most}.tif": tiff_of_floats([most * x for x in ramp], SIDE) for most in (1, 255, 65535)
    }
    grey = b"".join(b"\0" + bytes([16 * row, 0]) * SIDE for row in range(SIDE))
    files["grey.png"] = png_file(SIDE, SIDE, 16, 0, grey, [(b"tRNS", bytes([32, 0]))])
    return {**files, "t.jsonl": json_lines({"image": x, "captions": x} for x in files)}


CASES = {
    "fault_tsv_with_stray_quotes": Case({"t.tsv": "\n".join(STRAY)}, Documents("t.tsv")),
    "fault_tsv_with_an_unclosed_quote": Case(
        {"t.tsv": "\n".join(STRAY[:4] + STRAY[6:])}, Documents("t.tsv")
    ),
    "tsv_with_stray_quotes_without_header": Case(
        {"t.tsv": "\n".join(STRAY[1:])}, Documents("t.tsv")
    ),
    "fault_csv_with_an_unclosed_quote": Case(
        {"t.csv": "id,text\n" + "".join(UNCLOSED)}, Documents("t.csv")
    ),
    "fault_csv_with_letters_after_a_quote": Case(
        {"t.csv": 'id,text\nd1,x\nd2,"y"z\nd3,"y""\nd4,w\n'}, Documents("t.csv")
    ),
    "fault_data_tsv_with_stray_quotes": Case(
        {"data.tsv": "question\tanswer\n" + "".join(ANSWERS)}, Data("data.tsv")
    ),
    "fault_data_captions_with_stray_quotes": Case(
        {**pictures("data", range(30)), "data/train.tsv": "title\tfilepath\n" + "".join(CAPTIONS)},
        Data(),
    ),
    "fault_beir_whose_first_document_has_no_title": Case(
        untitled(0), Beir(path="beir", min_relevance=1), ("query", "text")
    ),
    "beir_whose_last_document_has_no_title": Case(
        untitled(3), Beir(path="beir", min_relevance=1), ("query", "text")
    ),
    "fault_documents_whose_first_has_no_id": Case(
        {"t.jsonl": json_lines(DOCUMENTS)}, Documents("t.jsonl")
    ),
    "documents_whose_last_has_no_id": Case(
        {"t.jsonl": json_lines(DOCUMENTS[::-1])}, Documents("t.jsonl")
    ),
    "fault_documents_whose_first_has_another_text": Case(
        {"t.jsonl": json_lines([{"_id": "x6", "body": "six"}, *DOCUMENTS[1:]])},
        Documents("t.jsonl"),
    ),
    "fault_tar_with_five_captions": Case(
        {"t.tar": five_captions()},
        Tar(path="t.tar"),
        ("captions", "image"),
    ),
    "fault_data_tar_with_dots_in_names": Case(
        {"data.tar": dotted_names()},
        Data("data.tar"),
    ),
    "fault_pixels_of_float_and_transparent_grey": Case(
        odd_pixels(),
        Pairs(path="t.jsonl"),
        ("captions", "image"),
    ),
    "fault_data_carriage_returns": Case(
        {
            **pictures("data", range(30)),
            "data/t.csv": delimited([("file", "title"), *ROWS]).replace("\n", "\r"),
        },
        Data(),
        changes="a file with carriage returns alone as line ends is read",
    ),
    "fault_data_split_file_called_dataset": Case(
        karpathy("data/dataset.json"),
        Data(),
        changes="dataset.json is an index of shards only if its content is one",
    ),
}
