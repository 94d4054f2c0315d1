"""Models that their authors publish as single files: downloaded once by name, checked by SHA-256.

Example: `big-retrieval import --from=clip-mtob/vit-b16_mt-ob-32-16_e32_f32k_2`. The folder of
downloads is `cache()`. Files can also be copied there.
"""

import hashlib
import logging
import os
import shutil
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from big_retrieval.errors import UserError
from big_retrieval.io.durable import publish

log = logging.getLogger(__name__)
SECONDS = 30.0  # timeout of a request


@dataclass(frozen=True)
class File:
    """One file of a web site; its size is in bytes."""

    url: str
    sha256: str
    size: int


_COMMIT = "c5269c080f159ab88ccc744d42f66dcc34c53d5b"
_MTOB = f"https://github.com/minogame/clip-mtob/raw/{_COMMIT}/"
_MTOB_WORDS = File(
    f"{_MTOB}ERNIE-BASE-EN-2.0/vocab.txt",
    "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    231508,
)
# Weights and tokenizer of the models of "Design of the Topology for Contrastive Visual-Textual
# Alignment": ViT-B/16 with 16 class tokens of 32 dimensions, and its baseline, one token of 512.
MODELS = {
    "clip-mtob/vit-b16_mt-ob-32-16_e32_f32k_2": (
        File(
            f"{_MTOB}vit-b16_mt-ob-32-16_e32_f32k_2.pt",
            "cf170d76f56f460df69724b6890f63b8b2e71c08b26a31d2bfc622b2ddcb1384",
            557570209,
        ),
        _MTOB_WORDS,
    ),
    "clip-mtob/vit-b16_e32_f32k": (
        File(
            f"{_MTOB}vit-b16_e32_f32k.pt",
            "85a8fdef06fc5d9ef4b5c5ad78858d70e701a02912fbc787b1496418b14ec49a",
            559904929,
        ),
        _MTOB_WORDS,
    ),
}


def find(path: str) -> str | None:
    """Returns the key of `MODELS` for its full name or the name of its file; None for others."""
    query = path.removeprefix("minogame/").removesuffix(".pt")
    return next((name for name in MODELS if query in (name, name.partition("/")[2])), None)


def cache() -> Path:
    """Returns the folder of downloads: BIG_RETRIEVAL_CACHE, or a folder in the user's cache."""
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("BIG_RETRIEVAL_CACHE") or Path(user_cache) / "big_retrieval")


def fetch(name: str) -> tuple[Path, Path]:
    """Returns weights and tokenizer of a published model; downloads missing files.

    Raises:
      UserError: no network, a file with another digest, or a full disk.
    """
    folder = cache() / Path(name).parent
    weights, tokenizer = (_file(file, folder) for file in MODELS[name])
    return weights, tokenizer


def _file(file: File, folder: Path) -> Path:
    path = folder / file.url.rpartition("/")[2]
    if not path.is_file():
        log.info(f"downloading {file.url} ({file.size / 1e6:.0f} MB) to {path}")
        _download(file, path)
    elif path.stat().st_size != file.size:
        raise UserError(
            f"Incomplete download: {path} has {path.stat().st_size:,} of {file.size:,} bytes. "
            "Remove it."
        )
    return path


def _download(file: File, path: Path) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(file.url, timeout=SECONDS) as answer, partial.open("wb") as out:
            shutil.copyfileobj(answer, out)
        with partial.open("rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        if digest != file.sha256:
            raise UserError(
                f"{file.url} differs from the published file (SHA-256 {digest[:12]}... instead of "
                f"{file.sha256[:12]}...). Nothing was kept."
            )
        publish(partial, path)
    except OSError as error:
        raise UserError(
            f"Cannot download {file.url} to {path}: {error}. Download it elsewhere and copy it."
        ) from None
    finally:
        partial.unlink(missing_ok=True)
