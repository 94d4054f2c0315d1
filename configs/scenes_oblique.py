"""The oblique paper's ablations in miniature: generated scenes, for two CPU cores.

"Design of the Topology for Contrastive Visual-Textual Alignment", section 4.3: any structure,
topology and temperature, as configs/oblique_s16_yfcc15m.py, of 128 instead of 512 dimensions. In
the domain are scenes of combinations that training has, out of it those of new combinations.
"""

from big_retrieval import config
from big_retrieval.config import recipe
from configs import oblique_s16_yfcc15m


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal; structure (multi-16-8), topology, logit_scale and fixed, as those of
    configs/oblique_s16_yfcc15m.py; steps (200)."""
    args = recipe.parse_arg(
        arg, structure="multi-16-8", topology="", logit_scale=1 / 0.07, fixed=False, steps=200
    )
    c = recipe.small()
    c.total_steps, c.log_every, c.data.count = args.steps, 20, 10_000
    c.eval_every = 50
    oblique_s16_yfcc15m.shape(c, args, dimensions=128)
    c.evals.test.every = 0
    c.evals.colours = recipe.entry(config.ZeroShot(), label="colour", every=0)
    shapes = config.Scenes(split="shapes")
    c.evals.shapes = recipe.entry(config.ZeroShot(), data=shapes, label="shape", every=0)
    c.evals.shapes_probe = recipe.entry(config.LinearProbe())
    pairs = {
        "in_domain": config.Scenes(count=1000, seed=1),
        "out_of_domain": config.Scenes(split="test"),
    }
    for name, each in pairs.items():
        c.evals[name] = recipe.entry(config.Geometry(), data=each)
    return recipe.runlocal(c) if args.runlocal else c
