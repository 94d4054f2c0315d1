"""Trains a configuration.

    big-retrieval train --config=quickstart
    big-retrieval train --config=FILE.py[:arg] [--workdir=DIR] [--config.a.b=value ...]

--config is a file, or the name of a config that comes with the package (`big-retrieval configs`
lists them). Everything that the run writes goes into the run folder, --workdir; the same command
started again goes on from the newest checkpoint. With --plan nothing is trained, as by
`big-retrieval plan`.

Several processes (hosts) start the same command (launch/ does it for them). Where
JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID are set, the processes find each other
by these; on a TPU pod or under SLURM, with --distributed, by what the platform says. The exit
status is 2 for a user's mistake and 75 where the same command started again may well succeed. Only
one run writes into a run folder: another one ends with a sentence, or waits with --wait.

`python -m big_retrieval.main` is the same command.
"""

from big_retrieval import main as training

LOG = True
main = training.main
