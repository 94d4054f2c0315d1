"""Batch norms in towers and heads: by which statistics they go, in a run and in its phases."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from big_retrieval.config.run import Config

BatchStats = Literal["tower", "update", "batch", "running"]


@dataclass(frozen=True)
class BatchNormed:
    """The keys of a tower or head with batch norms (`models.batch_norm.BatchNorm`).

    Named before `Tower` or `Head` among a class's bases, as it answers some of their questions.
    """

    normed: ClassVar[bool] = True
    frozen_stats: bool = False  # training, too, normalises by the running averages, which stay
    batch_stats: Literal["batch", "slice"] = "batch"  # a slice: only under `microbatch`

    @property
    def whole_batch(self) -> bool:
        """Whether a row's vector depends on all rows of the batch in training."""
        return self.normed and not self.frozen_stats and self.batch_stats == "batch"

    @property
    def by_slice(self) -> bool:
        """Whether it depends on the rows of its micro-batch."""
        return self.normed and not self.frozen_stats and self.batch_stats == "slice"

    def check_slices(self, config: "Config", path: str) -> Iterator[str]:
        """That slices of a batch were asked for, a sentence if not.

        Args:
          config: of the run.
          path: of this part, such as `config.towers.image`.
        """
        size = config.microbatch
        if size is not None and size < config.batch_size and self.whole_batch:
            yield (
                f"config.microbatch {size}: the batch norms of {path} need the whole batch at "
                f"once; give {path}.batch_stats 'slice' (they then go by {size} rows each, "
                f"which is not the same training), {path}.frozen_stats, or no config.microbatch."
            )


def parts_of(config: "Config") -> dict[str, Any]:
    """All towers and heads by their paths, such as `config.fields.text.head`."""
    towers = {f"config.towers.{name}": tower for name, tower in config.towers.items()}
    fields = config.encoded.items()
    return towers | {f"config.fields.{name}.head": field.head for name, field in fields}


def has_modes(part: Any) -> bool:
    """Whether a tower or head has batch norms whose statistics a phase can choose."""
    return part.normed and hasattr(part, "frozen_stats")


def in_mode(part: Any, mode: BatchStats) -> Any:
    """A tower or head as a phase has it: its `frozen_stats` by the phase's `batch_stats`."""
    if mode == "tower" or not has_modes(part):
        return part
    return dataclasses.replace(part, frozen_stats=mode == "running")
