"""How texts are cleaned before they become ids, where a model was trained on cleaned ones."""

import html
import html.entities
import re
import unicodedata
from collections.abc import Callable

_ENTITY = re.compile(r"&#?[0-9A-Za-z]{1,24};")
_ESCAPE = re.compile(r"\x1b\[[\d;]*[a-zA-Z]")  # a terminal's colours
_SURROGATE = re.compile("[\ud800-\udfff]")


def _plain_forms() -> dict[int, str]:
    """Character -> the plain one: of another width, ligatures, curly quotes, Windows' own."""
    ligatures = [0x132, 0x133, 0x149, *range(0x1C4, 0x1CD), *range(0x1F1, 0x1F4)]
    ligatures += range(0xFB00, 0xFB07)
    widths = [0x3000, *range(0xFF01, 0xFFF0)]
    forms = {code: unicodedata.normalize("NFKC", chr(code)) for code in ligatures + widths}
    forms[0xFB05] = "\u017ft"  # its long s stays
    forms |= dict.fromkeys([0x2BC, *range(0x2018, 0x201C)], "'")
    forms |= dict.fromkeys(range(0x201C, 0x2020), '"')
    for code in range(0x80, 0xA0):  # no character in Unicode, one in Windows-1252
        forms[code] = bytes([code]).decode("cp1252", "ignore") or chr(code)
    return forms


_PLAIN = _plain_forms()
_DROPPED = dict.fromkeys(
    [
        *range(9), 0xB, *range(0xE, 0x20), 0x7F,  # controls that are no white space
        *range(0x206A, 0x2070), 0xFEFF, *range(0xFFF9, 0xFFFD),  # controls and marks of Unicode
    ]
)  # fmt: skip


def clip_text(text: str) -> str:
    """A text as CLIP cleans it, lower case apart: what ftfy and two rounds of HTML entities give.

    Entities become characters; curly quotes, ligatures, full and half widths the plain ones;
    controls and a terminal's colours go, half pairs of surrogates become U+FFFD; the result is in
    NFC, with single spaces. Other than by ftfy, text decoded in the wrong encoding (mojibake) stays
    as it is.
    """
    if "&" not in text and text.isascii() and text.isprintable():
        return " ".join(text.split())
    lines, entities = [], True
    for line in text.split("\n"):
        entities = entities and "<" not in line  # with tags it is HTML, and means its entities
        lines.append(_repaired(line, entities))
    text = html.unescape(html.unescape("\n".join(lines)))
    text = " ".join(text.split())
    return text.lower() if "\u03a3" in text else text  # a sigma at the end of a word is another


def _repaired(line: str, entities: bool) -> str:
    """A line after all repairs, again and again until it stays."""
    while True:
        before = line
        if entities:
            line = _ENTITY.sub(_character, line)
        line = line.translate(_PLAIN)
        if _SURROGATE.search(line):
            line = line.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        line = _ESCAPE.sub("", line).translate(_DROPPED)
        line = unicodedata.normalize("NFC", line)
        if line == before:
            return line


def _character(match: re.Match[str]) -> str:
    """What an entity stands for, also one in capitals by mistake; itself if it is none."""
    entity = match[0]
    if entity[1] == "#":
        found = html.unescape(entity)
        return entity if ";" in found else found
    name, known = entity[1:], html.entities.html5
    if name in known:
        return known[name]
    if name.isupper() and name.lower() in known and html.unescape(entity) == entity:
        return known[name.lower()].upper()
    return entity


CLEANERS: dict[str, Callable[[str], str]] = {"clip": clip_text}
