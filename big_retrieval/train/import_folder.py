"""An imported model as a folder of ours, with all that is needed to use it."""

from pathlib import Path

from big_retrieval.config import schema
from big_retrieval.inference.fingerprint import versions
from big_retrieval.inference.load import TrainedModel
from big_retrieval.io.manifest import to_json
from big_retrieval.train.checkpoint import Checkpoints


def write(model: TrainedModel, folder: Path) -> None:
    """Writes a model as checkpoint 0 of a folder, as a run of ours leaves them.

    Args:
      model: with its tokenizer and configuration.
      folder: made where it is missing.

    Raises:
      UserError: it cannot be written.
    """
    files = {
        "config.json": to_json(schema.to_plain(model.config)),
        "tokenizer.json": model.tokenizer.to_json().encode(),
    }
    meta = {
        "step": 0,
        "metrics": {},
        "origin": str(model.folder),
        "vocab_size": model.tokenizer.vocab_size,
        "versions": versions(),
    }
    checkpoints = Checkpoints(folder / "checkpoints", files=files)
    try:
        params = dict(model.weights)
        batch_stats = params.pop("batch_stats", {})
        checkpoints.save(0, {"params": params, "batch_stats": batch_stats}, meta)
    finally:
        checkpoints.close()
