"""Explanations of models: words of lexical models, Grad-CAM of dense models.

    model = big_retrieval.load(RUN)
    explain.strongest(model, "a red ball", "text", 10)
    explain.shared(model, "a red ball", "ball.jpg").words
    explain.look(model, "ball.jpg").map("ball")
    explain.gradcam(dense, "a red ball", "ball.jpg").image

`model` has lexical text and image fields; `dense` is a dense model.
"""

from big_retrieval.explain.attributions import gradcam
from big_retrieval.explain.patches import Patches, look, patch_list, rectangle
from big_retrieval.explain.vocabulary import Box, Usage, box, usage
from big_retrieval.explain.words import shared, strongest, words_of
from big_retrieval.report.gradcam import Attribution
from big_retrieval.sparse.listing import Shared

__all__ = [
    "Attribution",
    "Box",
    "Patches",
    "Shared",
    "Usage",
    "box",
    "gradcam",
    "look",
    "patch_list",
    "rectangle",
    "shared",
    "strongest",
    "usage",
    "words_of",
]
