"""Trains a configuration.

    python -m big_retrieval.main --config=configs/X.py[:arg] [--workdir=DIR] [--config.a.b=v]

Several processes (hosts) start the same command. Where JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES
and JAX_PROCESS_ID are set they find each other by these; on a TPU pod or under SLURM, with
--distributed, by what the platform says.
"""

import os

from absl import flags

from big_retrieval import cli
from big_retrieval.checks import check
from big_retrieval.errors import UserError

DISTRIBUTED = flags.DEFINE_bool("distributed", False, "Join the other processes of this run first")


def join_processes() -> None:
    """Connects the processes of a run, if there are several.

    Raises:
      UserError: the address is there but not the numbers.
    """
    import jax

    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    if address is None:
        if DISTRIBUTED.value:
            jax.distributed.initialize()
        return
    try:
        count, number = int(os.environ["JAX_NUM_PROCESSES"]), int(os.environ["JAX_PROCESS_ID"])
    except (KeyError, ValueError):
        raise UserError(
            "JAX_COORDINATOR_ADDRESS is set, so JAX_NUM_PROCESSES and JAX_PROCESS_ID must be, to "
            "whole numbers."
        ) from None
    jax.distributed.initialize(address, num_processes=count, process_id=number)


def main() -> None:
    """Reads the configuration and trains."""
    config, workdir = cli.load_config(), cli.workdir()
    check(config)  # before jax is imported: mistakes show at once
    join_processes()
    from big_retrieval.train.loop import train

    train(config, workdir)


if __name__ == "__main__":
    cli.run(main)
