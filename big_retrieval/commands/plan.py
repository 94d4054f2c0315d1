"""Says what a run would need and cost: memory, time, communication. Nothing is trained.

    big-retrieval plan --config=quickstart
    big-retrieval plan --config=FILE.py[:arg] [--topology=h200-8] [--config.a.b=value ...]

The devices are those of this machine, or those of --topology, which need not be here. The plan goes
to the screen and into plan.json of the run folder, --workdir.
"""

from big_retrieval import cli
from big_retrieval import main as training
from big_retrieval.config.checks import check

LOG = True
WITHOUT = ("plan", "distributed", "beir", "beir_sets")  # evaluators cost no memory of their own


def main() -> None:
    """Checks the configuration and plans."""
    config, workdir = cli.load_config(), cli.workdir()
    check(config)  # before jax is imported: mistakes show at once
    training.plan(config, workdir)
