"""Models that their authors publish as single files: by name, downloaded once, checked by SHA-256.

`big-retrieval import --from=clip-mtob/vit-b16_mt-ob-32-16_e32_f32k_2` is all it
takes. What was downloaded lies below `cache()`, where a file may also be put by hand.
"""

import hashlib
import logging
import os
import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from big_retrieval.errors import UserError
from big_retrieval.io.durable import publish

log = logging.getLogger(__name__)
SECONDS = 30.0  # to wait for an answer
_CHUNK = 1 << 20


@dataclass(frozen=True)
class File:
    """One file of the network.

    Attributes:
      url: where it is.
      sha256: of its bytes, in hexadecimal.
      size: in bytes.
    """

    url: str
    sha256: str
    size: int


@dataclass(frozen=True)
class PublishedModel:
    """A published model.

    Attributes:
      weights: the file with its parameters.
      tokenizer: the file with its words.
    """

    weights: File
    tokenizer: File


_COMMIT = "c5269c080f159ab88ccc744d42f66dcc34c53d5b"
_MTOB = f"https://github.com/minogame/clip-mtob/raw/{_COMMIT}/"
_MTOB_WORDS = File(
    f"{_MTOB}ERNIE-BASE-EN-2.0/vocab.txt",
    "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    231508,
)
# The models of "Design of the Topology for Contrastive Visual-Textual Alignment": ViT-B/16 with 16
# class tokens of 32 dimensions, and its baseline of one with 512.
MODELS = {
    "clip-mtob/vit-b16_mt-ob-32-16_e32_f32k_2": PublishedModel(
        File(
            f"{_MTOB}vit-b16_mt-ob-32-16_e32_f32k_2.pt",
            "cf170d76f56f460df69724b6890f63b8b2e71c08b26a31d2bfc622b2ddcb1384",
            557570209,
        ),
        _MTOB_WORDS,
    ),
    "clip-mtob/vit-b16_e32_f32k": PublishedModel(
        File(
            f"{_MTOB}vit-b16_e32_f32k.pt",
            "85a8fdef06fc5d9ef4b5c5ad78858d70e701a02912fbc787b1496418b14ec49a",
            559904929,
        ),
        _MTOB_WORDS,
    ),
}


def find(path: str) -> str | None:
    """The published model that a path means, by its whole name or by that of its file; or None."""
    asked = path.removeprefix("minogame/").removesuffix(".pt")
    return next((name for name in MODELS if asked in (name, name.partition("/")[2])), None)


def cache() -> Path:
    """The folder of downloads: BIG_RETRIEVAL_CACHE, or big_retrieval in the user's own cache."""
    usual = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("BIG_RETRIEVAL_CACHE") or Path(usual) / "big_retrieval")


def fetch(name: str) -> tuple[Path, Path]:
    """The files of a published model: weights and tokenizer; downloaded where they are not there.

    Args:
      name: a key of MODELS.

    Raises:
      UserError: no network, a file of other bytes than the published one, or no place for it.
    """
    model = MODELS[name]
    folder = cache() / Path(name).parent
    return _file(model.weights, folder), _file(model.tokenizer, folder)


def _file(file: File, folder: Path) -> Path:
    path = folder / file.url.rpartition("/")[2]
    if not path.is_file():
        log.info(f"downloading {file.url} ({file.size / 1e6:.0f} MB) to {path}")
        _download(file, path)
    elif path.stat().st_size != file.size:
        raise UserError(
            f"{path} has {path.stat().st_size:,} bytes instead of {file.size:,}: remove it, and it "
            "is downloaded again."
        )
    return path


def _download(file: File, path: Path) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(file.url, timeout=SECONDS) as answer, part.open("wb") as out:
            shutil.copyfileobj(answer, out, _CHUNK)
        if (found := _sha256(part)) != file.sha256:
            raise UserError(
                f"{file.url} has other bytes than those published (SHA-256 {found[:12]}... instead "
                f"of {file.sha256[:12]}...); nothing was kept."
            )
        publish(part, path)
    except (OSError, urllib.error.URLError) as problem:
        reason = getattr(problem, "reason", None) or problem
        raise UserError(
            f"{file.url} cannot be downloaded to {path} ({reason}): download it elsewhere and put "
            "it there."
        ) from None
    finally:
        part.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
