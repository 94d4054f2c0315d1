"""Trains a configuration; `big-retrieval train` is the same command.

python -m big_retrieval.main --config=FILE.py[:arg] [--workdir=DIR] [--config.a.b=v]
"""

import sys

from big_retrieval import commands

if __name__ == "__main__":
    commands.run("train", sys.argv[1:])
