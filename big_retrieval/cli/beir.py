"""The flags --beir and --beir_sets: BEIR's data sets as evaluators of any text model."""

from absl import flags

from big_retrieval.config import Config
from big_retrieval.config.beir import with_beir
from big_retrieval.errors import UserError

FOLDER = flags.DEFINE_string(
    "beir", "", "Folder of BEIR's data sets: adds them as evaluators, and their average"
)
SETS = flags.DEFINE_list("beir_sets", [], "Which of BEIR's data sets, such as scifact,fiqa")


def added(config: Config) -> Config:
    """A config with the evaluators that the flags ask for; the same without them.

    Raises:
      UserError: the model does not compare texts, or there is no such data set.
    """
    if not FOLDER.value:
        if SETS.value:
            raise UserError("--beir_sets chooses from the data sets of --beir: give that, too.")
        return config
    try:
        return with_beir(config, FOLDER.value, SETS.value)
    except UserError as problem:
        raise UserError(f"--beir: {problem}") from None
