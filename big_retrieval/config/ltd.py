"""Losses of latent target decoding (LTD), parts of `config.losses`.

"Reducing Predictive Feature Suppression in Resource-Constrained Contrastive Image-Caption
Retrieval": a contrastive loss keeps only the features that tell the captions of a batch apart. A
decoder that has to rebuild the caption, or a vector of it, from the caption's embedding keeps the
other features, too. Its loss L_rec is added by a weight (`weight`, Eq. 7) or is a constraint
(`constraint.bound`, Eq. 9).
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from big_retrieval.config.loss import Loss
from big_retrieval.config.ranges import AtLeast1
from big_retrieval.config.registry import register

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.losses.function import LossFunction


@dataclass(frozen=True)
class DecoderLoss(Loss):
    """The base of losses whose decoder reads the embedding of a field.

    All class tokens (or sub-spheres) [M, N] of the embedding are read as one vector. The embedding
    of a lexical head, which has a number for every term, is not read: its decoder gets the mean of
    the tower's vectors over the positions.
    """

    field: str = "text"  # whose embeddings are decoded

    def check(self, config: "Config", path: str) -> Iterator[str]:
        if self.field not in config.encoded:
            known = ", ".join(config.encoded)
            yield f"{path}.field is {self.field!r}, which no tower reads; known: {known}."

    def reads_vectors(self, config: "Config") -> tuple[str, ...]:
        """See `Loss`; of a lexical field."""
        return (self.field,) if config.fields[self.field].head.lexical else ()


@register("loss")
@dataclass(frozen=True)
class LatentTarget(DecoderLoss):
    """How far three linear layers are from a caption's target, given its embedding (Eqs. 5, 6)."""

    type: Literal["latent_target"] = "latent_target"
    target: str = "target"  # the array field of the targets: vectors of a sentence encoder
    hidden: AtLeast1 = 1024  # width of the decoder's two hidden layers
    # the mean over the rows of 1 - cosine, or of the Euclidean distance
    distance: Literal["cosine", "l2"] = "cosine"

    def check(self, config: "Config", path: str) -> Iterator[str]:
        yield from super().check(config, path)
        target = config.fields.get(self.target)
        if target is None or target.side != "target":
            known = ", ".join(config.side("target")) or "none"
            yield f"{path}.target is {self.target!r}, no field of the side 'target' ({known})."
            return
        shape, dtype = target.shapes().get("values", ((), ""))
        if len(shape) != 1 or not dtype.startswith("float"):
            yield (
                f"{path}.target is {self.target!r}, which has values of the shape {shape} and the "
                f"type {dtype or 'none'}; name an array field of float vectors, shape (size,)."
            )

    def build(self, config: "Config", name: str) -> "LossFunction":
        from big_retrieval.losses.ltd import LatentTargetLoss

        (size,) = config.fields[self.target].shapes()["values"][0]
        return LatentTargetLoss(self, name, bool(self.reads_vectors(config)), size)

    def runlocal(self) -> "LatentTarget":
        return dataclasses.replace(self, hidden=min(64, self.hidden))


@register("loss")
@dataclass(frozen=True)
class InputTarget(DecoderLoss):
    """Minus the log-likelihood of a text's own tokens, given its embedding (ITD, Eq. 4).

    A GRU that starts from the embedding reads each token (those of the batch, augmented as the
    tower gets them) and predicts the next one. Summed over the tokens, mean over the rows: L is
    about log(words of the vocabulary) times tokens at the start of a run.
    """

    type: Literal["input_target"] = "input_target"
    words: AtLeast1 = 300  # width of the decoder's own word vectors, which start random
    # width of the GRU; None: that of the embedding, which is then its first state as it is; any
    # other width puts a linear map in between
    hidden: AtLeast1 | None = None
    # "time": as the paper's authors released it, for comparisons only; positions, padding
    # included, then compete instead of words, and L is no likelihood
    softmax_over: Literal["vocabulary", "time"] = "vocabulary"

    def check(self, config: "Config", path: str) -> Iterator[str]:
        yield from super().check(config, path)
        field = config.encoded.get(self.field)
        if field is not None and field.modality != "text":
            texts = ", ".join(n for n, f in config.encoded.items() if f.modality == "text")
            yield (
                f"{path}.field is {self.field!r}, which has no tokens; name a text "
                f"({texts or 'there is none'})."
            )

    def build(self, config: "Config", name: str) -> "LossFunction":
        from big_retrieval.losses.ltd import InputTargetLoss

        pooled = bool(self.reads_vectors(config))
        return InputTargetLoss(self, name, pooled, config.tokenizer.vocab_size)

    def runlocal(self) -> "InputTarget":
        hidden = None if self.hidden is None else min(64, self.hidden)
        return dataclasses.replace(self, words=min(32, self.words), hidden=hidden)
