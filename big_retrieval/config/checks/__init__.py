"""Checks of combinations of keys that cannot work.

Each check yields sentences; the first sentence becomes the error. Checks need no accelerator and no
data, so that a mistake shows within a second and not after an hour of start-up.
"""

from big_retrieval.config.checks.run import check, mesh_shape
