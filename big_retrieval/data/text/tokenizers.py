"""Tokenizers: WordPiece, CLIP's byte pairs, or any tokenizer of the Hugging Face hub."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from big_retrieval.data.text.tokenizer import FixedLengthTokenizer
from big_retrieval.data.text.wordpiece import PREFIX, SPECIALS
from big_retrieval.errors import UserError
from big_retrieval.io import hub
from big_retrieval.io.regular import check_regular, read_gzip, read_text

CLIP_START, CLIP_END = "<|startoftext|>", "<|endoftext|>"

MAX_FILE = 64 * 2**20  # maximum bytes of an unpacked vocabulary; CLIP's has 3 MB
CLIP_MERGES = 49152 - 256 - 2
_CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def wordpiece_tokenizer(vocab: Sequence[str], *, lowercase: bool = True) -> FixedLengthTokenizer:
    """Returns BERT's tokenizer: [CLS] pieces [SEP], with greedy longest matches as pieces.

    It drops control characters, and splits at white space, punctuation and CJK characters. A word
    without a match, or of more than 100 characters, is [UNK]. A special token counts only as a
    separate word.

    Args:
      vocab: entries in the order of their ids, with [PAD], [UNK], [CLS] and [SEP].
      lowercase: True to lower-case texts and strip their accents.

    Raises:
      UserError: a special token is missing, or an entry occurs twice.
    """
    ids = {token: index for index, token in enumerate(vocab)}
    for special in SPECIALS[:4]:
        if special not in ids:
            raise UserError(f"The WordPiece vocabulary has no {special}; it is not one of BERT's.")
    if len(ids) < len(vocab):
        raise UserError("The WordPiece vocabulary has an entry twice; every id needs its own.")
    inner = tokenizers.Tokenizer(
        models.WordPiece(
            ids, unk_token="[UNK]", max_input_chars_per_word=100, continuing_subword_prefix=PREFIX
        )
    )
    inner.normalizer = normalizers.BertNormalizer(lowercase=lowercase)  # type: ignore[assignment]
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    inner.post_processor = processors.BertProcessing(  # type: ignore[assignment]
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    standalone = [name for name in SPECIALS if name in ids]
    return FixedLengthTokenizer(inner, pad_id=ids["[PAD]"], standalone=standalone)


def clip_tokenizer(path: str | os.PathLike[str], merges: int = CLIP_MERGES) -> FixedLengthTokenizer:
    """Returns CLIP's byte-pair tokenizer from `bpe_simple_vocab_16e6.txt.gz`: 49,408 ids, pad id 0.

    It cleans texts (`tokenizer.clip_text`), lower-cases them and puts <|startoftext|> and
    <|endoftext|> around them. The ids equal those of open_clip's SimpleTokenizer.

    Args:
      merges: number of merges; later lines are ignored.

    Raises:
      UserError: the file is missing, or has another number of merges.
    """
    lines = _read(path).split("\n")[1 : merges + 1]
    pairs = [(pair[0], pair[1]) for pair in (line.split() for line in lines) if len(pair) == 2]
    if len(pairs) != merges:
        raise UserError(f"{path} has {len(pairs)} merges, CLIP's file has {merges}.")
    letters = _byte_letters()
    entries = [*letters, *(letter + "</w>" for letter in letters), *map("".join, pairs)]
    ids = {token: index for index, token in enumerate([*entries, CLIP_START, CLIP_END])}
    try:
        model = models.BPE(ids, pairs, unk_token=CLIP_END, end_of_word_suffix="</w>")
    except Exception as error:  # the tokenizers package raises plain Exception
        raise UserError(f"The merges of {path} do not fit CLIP's vocabulary ({error}).") from error
    inner = tokenizers.Tokenizer(model)
    inner.normalizer = normalizers.Sequence(  # type: ignore[assignment]
        [
            normalizers.NFC(),
            normalizers.Replace(tokenizers.Regex(r"\s+"), " "),
            normalizers.Lowercase(),
        ]
    )
    split = pre_tokenizers.Split(tokenizers.Regex(_CLIP_WORDS), "removed", invert=True)
    inner.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.post_processor = processors.RobertaProcessing(  # type: ignore[assignment]
        (CLIP_END, ids[CLIP_END]),
        (CLIP_START, ids[CLIP_START]),
        trim_offsets=False,
        add_prefix_space=False,
    )
    inner.add_special_tokens([CLIP_START, CLIP_END])
    return FixedLengthTokenizer(inner, pad_id=0, clean="clip")


def _byte_letters() -> list[str]:
    """Returns the letters of the bytes in the order of CLIP's ids: printable bytes first."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    count = 256 - len(printable)
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(count)]


def load_tokenizer(tokenizer_type: str, path: str) -> FixedLengthTokenizer:
    """Loads the tokenizer of a file, a folder or a name on the hub.

    Args:
      tokenizer_type: "wordpiece", "clip", "words" (a run's `tokenizer.json`) or "auto" (by
        the file).
      path: a `vocab.txt`, `tokenizer.json` or merges file (`.txt.gz`); a folder with
        `tokenizer.json` or `vocab.txt`; or a name on the hub.
    """
    file = Path(path)
    if file.exists():
        check_regular(file, folders=True)
    if tokenizer_type == "words" and not (file.is_file() and file.suffix == ".json"):
        raise UserError(
            f"config.tokenizer.path is {path}, but a tokenizer of the type 'words' is the "
            "tokenizer.json of a run; give such a file, or '' to learn the words from the captions."
        )
    if file.is_file():
        return _load_file(tokenizer_type, file)
    if not file.is_dir():
        if file.suffix in (".txt", ".json", ".gz") or file.is_absolute():
            raise UserError(f"config.tokenizer.path: there is no file or folder {file}.")
        return _load_hub(path)
    names = {"wordpiece": ("vocab.txt", "tokenizer.json"), "clip": ("tokenizer.json",)}
    for name in names.get(tokenizer_type, ("tokenizer.json", "vocab.txt")):
        if (file / name).is_file():
            return _load_file(tokenizer_type, file / name)
    raise UserError(
        f"config.tokenizer.path {file} has no tokenizer.json or vocab.txt. Save the tokenizer "
        "again with transformers' `save_pretrained`, which writes tokenizer.json."
    )


def _load_file(tokenizer_type: str, path: Path) -> FixedLengthTokenizer:
    if path.suffix == ".json":
        return FixedLengthTokenizer.load(path)
    if tokenizer_type == "clip" or (tokenizer_type == "auto" and path.suffix == ".gz"):
        return clip_tokenizer(path)
    lines = [line.rstrip("\r") for line in _read(path).split("\n")]
    settings = path.with_name("tokenizer_config.json")
    lowercase = _read_json(settings).get("do_lower_case", True) if settings.is_file() else True
    return wordpiece_tokenizer(lines if lines[-1] else lines[:-1], lowercase=lowercase)


def _load_hub(name: str) -> FixedLengthTokenizer:
    import transformers  # takes seconds to import

    tokenizer = hub.fetch(
        name,
        lambda cached: transformers.AutoTokenizer.from_pretrained(name, local_files_only=cached),
        label="config.tokenizer.path",
        otherwise="give a local vocab.txt or tokenizer.json",
    )
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None:
        raise UserError(f"The tokenizer {name!r} has no fast version; use another one.")
    return FixedLengthTokenizer.from_json(inner.to_str(), pad_id=tokenizer.pad_token_id)


def _read(path: str | os.PathLike[str]) -> str:
    try:
        if str(path).endswith(".gz"):
            return read_gzip(path, MAX_FILE).decode("utf-8")
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The tokenizer file {path} cannot be read ({error}).") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(_read(path)))
    except (TypeError, ValueError) as error:
        raise UserError(f"The tokenizer file {path} is not a JSON object ({error}).") from error
