"""Says what a run would need and cost: memory, time, communication. Nothing is trained.

    big-retrieval plan --config=quickstart
    big-retrieval plan --config=FILE.py[:arg] [--topology=h200-8] [--config.a.b=value ...]

The step is compiled for the devices of this machine, or for --topology, which need not be here: the
extras plan-tpu and plan-gpu install the compilers. --suggest compiles other settings, too, and
lists them by speed. The plan goes to the screen and into plan.json of the run folder, --workdir.
"""

from big_retrieval import cli
from big_retrieval import main as training
from big_retrieval.config.checks import check

LOG = True
WITHOUT = ("plan", "distributed", "beir", "beir_sets")  # evaluators cost no memory of their own


def main() -> None:
    """Checks the configuration and plans."""
    config, workdir = cli.load_config(), cli.workdir()
    check(config)
    training.plan(config, workdir)
