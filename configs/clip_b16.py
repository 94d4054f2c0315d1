"""The oblique paper's own CLIP: the recipe of oblique_b16.py, one class token, on the sphere.

"Design of the Topology for Contrastive Visual-Textual Alignment", Table 2, "our-impl.":
139,952,129 parameters, logit scale at most 100.
"""

from big_retrieval.config import recipe
from configs import oblique_b16


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal, batch (32768), microbatch (rows encoded at a time; 0: all), benchmarks,
    as of configs/oblique_b16.py."""
    args = recipe.parse_arg(arg, batch=32768, microbatch=0, benchmarks="tfds")
    own = f"batch={args.batch},microbatch={args.microbatch},benchmarks={args.benchmarks}"
    c = oblique_b16.get_config(f"n=512,m=1,{own}")
    c.topology = "sphere"
    return recipe.runlocal(c) if args.runlocal else c
