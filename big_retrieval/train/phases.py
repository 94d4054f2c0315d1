"""Phases of a run: from which step to which step, and the compiled step of each."""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from big_retrieval.config import Config, Phase
from big_retrieval.config.batch_norms import in_mode
from big_retrieval.errors import UserError
from big_retrieval.models.towers import RetrievalModel
from big_retrieval.train.schedules import Timeline

log = logging.getLogger(__name__)
PATH = "config.optimizer.phases"


@dataclass(frozen=True)
class Span:
    """A phase and its place in the run: the steps start + 1 .. stop.

    Attributes:
      name: of the phase; "" for what comes before the first one, or a run without any.
      start: finished steps at its beginning.
      stop: finished steps at its end.
      phase: what it changes.
    """

    name: str
    start: int
    stop: int
    phase: Phase


def spans(phases: Mapping[str, Phase], timeline: Timeline) -> tuple[Span, ...]:
    """The phases in order, without gaps, from step 0 to the end of the run.

    Args:
      phases: of the configuration.
      timeline: of the run. Where its epochs are unknown, phases take equal shares of the run.

    Raises:
      UserError: a phase begins at the run's end or later, or where another one does.
    """
    if timeline.steps_per_epoch is None:
        starts = _equal_shares(phases, timeline.total_steps)
    else:
        starts = {name: _start(phase, timeline) for name, phase in phases.items()}
    order = sorted(starts, key=lambda name: (starts[name], name))
    for before, name in itertools.pairwise(order):
        if starts[before] == starts[name]:
            raise UserError(
                f"{PATH}.{before} and {PATH}.{name} both begin at step {starts[name]}: phases must "
                "not overlap; let one of them begin later."
            )
    for name in order:
        if starts[name] >= timeline.total_steps:
            raise UserError(
                f"{PATH}.{name} begins at step {starts[name]:,}, but the run ends at step "
                f"{timeline.total_steps:,}: let it begin earlier, or train for longer."
            )
    places = [(name, starts[name], phases[name]) for name in order]
    if not places or places[0][1] > 0:
        places.insert(0, ("", 0, Phase()))
    stops = [start for _, start, _ in places[1:]] + [timeline.total_steps]
    return tuple(
        Span(name, start, stop, phase)
        for (name, start, phase), stop in zip(places, stops, strict=True)
    )


def _start(phase: Phase, timeline: Timeline) -> int:
    if phase.start_step is not None:
        return phase.start_step
    assert phase.start_epoch is not None
    return timeline.step_of(phase.start_epoch)


def _equal_shares(phases: Mapping[str, Phase], total: int) -> dict[str, int]:
    """Starts of phases where only their order matters."""

    def given(name: str) -> float:
        return phases[name].start_step or phases[name].start_epoch or 0

    order = sorted(phases, key=lambda name: (given(name), name))
    first = 0 if order and given(order[0]) == 0 else 1
    return {
        name: (place + first) * total // (len(order) + first) for place, name in enumerate(order)
    }


def model_of(model: RetrievalModel, phase: Phase) -> RetrievalModel:
    """The model with the batch statistics of a phase; parameters and names are the same."""
    if phase.batch_stats == "tower":
        return model
    towers = {name: in_mode(tower, phase.batch_stats) for name, tower in model.towers.items()}
    fields: dict[str, Any] = {}
    for name, field in model.fields.items():
        head: Any = in_mode(field.head, phase.batch_stats)
        fields[name] = dataclasses.replace(field, head=head)  # type: ignore
    return model.clone(towers=towers, fields=fields)


def at(found: Sequence[Span], step: int) -> int:
    """The number of the phase that a step (from 1) belongs to."""
    return next(i for i, span in enumerate(found) if span.start < step <= span.stop)


class Steps:
    """The compiled step of every phase, by the number of the step."""

    def __init__(
        self, found: Sequence[Span], compiled: Mapping[int, Any], figures: list[dict[str, Any]]
    ) -> None:
        """Takes what was compiled.

        Args:
          found: all phases.
          compiled: number of a phase -> its step, of those that are still to come.
          figures: of each compiled step, from `step_figures.log_step`.
        """
        self._spans, self._compiled, self.figures = found, compiled, figures
        self._now: int | None = None

    def __call__(self, step: int) -> Callable[..., Any]:
        """What computes this step, counted from 1."""
        if self._now is None or step > self._spans[self._now].stop:
            self._now = at(self._spans, step)
            span = self._spans[self._now]
            if len(self._spans) > 1:
                log.info(f"phase {title(span)}: up to step {span.stop:,}")
        return self._compiled[self._now]


def title(span: Span) -> str:
    """A phase's name on the screen."""
    return repr(span.name) if span.name else "before the first phase"


def each(config: Config) -> tuple[Phase, ...]:
    """The phases of a configuration, and what may come before them."""
    return Phase(), *config.optimizer.phases.values()
