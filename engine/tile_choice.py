"""Which of a few tiles a kernel is launched with: the fastest by far enough, measured when a model is loaded.

    rounds      default  wide  narrow  short │ default  wide  narrow  short │ …      one launch each, in turns
    choice      the smallest median, if it is 3 % under the default's; otherwise the default

Taking turns, all meet the same clock rate and the same neighbours. What measures is the caller's, and so is
the clock: nothing here needs a GPU. The time is bounded: a trial that it does not reach, or not for enough
rounds, has no choice, and keeps its default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, TypeAlias

from headway.kernels.tile_trials import TileTrial

Measure: TypeAlias = Callable[[str], float]
"""Launch by the tile of this name, and say how many seconds the device took; may raise, if it cannot."""
Begin: TypeAlias = Callable[[TileTrial], Measure]
"""Make a trial's inputs; they live as long as what is returned."""

ROUNDS: Final = 15
FEWEST_ROUNDS: Final = 5
"""Where the time ends in the middle of a trial: fewer say nothing."""
LEAST_GAIN: Final = 0.03
"""Of the default's time. Less is noise, and the default is what has been compiled and read the most."""
TUNING_SECONDS: Final = 60.0
"""For all of a model's trials. Most of it is the compiler's, about 1 s for each tile that is new to it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a trial ended with."""

    tile: str
    seconds: Mapping[str, float]
    """Medians, by the tile's name."""
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tiles that could not be launched, and why."""


def choose_tiles(
    trials: Iterable[TileTrial],
    begin: Begin,
    clock: Callable[[], float],
    *,
    seconds: float = TUNING_SECONDS,
) -> dict[str, Choice]:
    """Measure the trials in their order, by name, until the time is over; the first matter most.

    What runs when the time ends is run to its end: one launch, or the compilation of one.
    """
    end = clock() + seconds
    choices: dict[str, Choice] = {}
    for trial in trials:
        if clock() >= end:
            break
        choice = _choose(trial, begin, lambda: clock() >= end)
        if choice is not None:
            choices[trial.name] = choice
    return choices


def _choose(trial: TileTrial, begin: Begin, is_over: Callable[[], bool]) -> Choice | None:
    """None: for want of time, or because the default cannot be launched, as the first step will tell."""
    default, *_ = names = tuple(trial.tiles)
    failed: dict[str, str] = {}
    try:
        measure = begin(trial)
        measure(default)
    except Exception:  # no memory for the inputs, for one: whoever serves goes on as without this
        return None
    running = [default]
    for name in names[1:]:
        if is_over():
            return None
        try:
            measure(name)  # compiles it: not its time
        except Exception as error:  # one tile less to choose from
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            running.append(name)
    rounds = _rounds(running, measure, is_over)
    if len(rounds) < FEWEST_ROUNDS:
        return None
    medians = {name: median(times) for name, times in zip(running, zip(*rounds, strict=True), strict=True)}
    return Choice(_fastest(medians, default), medians, failed)


def _rounds(names: Sequence[str], measure: Measure, is_over: Callable[[], bool]) -> list[tuple[float, ...]]:
    rounds: list[tuple[float, ...]] = []
    while len(rounds) < ROUNDS and not is_over():
        rounds.append(tuple(measure(name) for name in names))
    return rounds


def _fastest(medians: Mapping[str, float], default: str) -> str:
    best = min(medians, key=lambda name: medians[name])
    return best if medians[best] < (1 - LEAST_GAIN) * medians[default] else default
