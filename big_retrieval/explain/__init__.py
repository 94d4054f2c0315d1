"""What lexical models see: strongest words, matching words, words of patches, use of a vocabulary.

model = big_retrieval.load(RUN)
explain.strongest(model, "a red ball", "text", 10)
explain.shared(model, "a red ball", "ball.jpg").words
explain.look(model, "ball.jpg").map("ball")
"""

from big_retrieval.explain.patches import Patches, look, patch_list, rectangle
from big_retrieval.explain.vocabulary import Box, Usage, box, usage
from big_retrieval.explain.words import shared, strongest, words_of
from big_retrieval.sparse.listing import Shared

__all__ = [
    "Box",
    "Patches",
    "Shared",
    "Usage",
    "box",
    "look",
    "patch_list",
    "rectangle",
    "shared",
    "strongest",
    "usage",
    "words_of",
]
