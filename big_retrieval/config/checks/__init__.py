"""Checks of keys that do not fit together.

Each check yields messages, of which the first is raised. Checks need neither accelerator nor data,
so that a mistake shows within a second.
"""

from big_retrieval.config.checks.run import check, mesh_shape
