"""Which of a few tiles a kernel is launched with: the fastest by far enough, measured when a model is loaded.

    rounds      default  wide  narrow  short │ default  wide  narrow  short │ …      one launch each, in turns
    choice      the smallest median, if it is 3 % under the default's; otherwise the default

Taking turns, all meet the same clock rate and the same neighbours. What measures is the caller's, and so is
the clock: nothing here needs a GPU. The time is bounded: a trial that it does not reach, or not for enough
rounds, has no choice, and keeps its default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final, TypeAlias

from headway.engine.errors import DeviceLostError, ModelError
from headway.kernels.tile_trials import TileTrial

Measure: TypeAlias = Callable[[str], float]
"""Launch by the tile of this name, and say how many seconds the device took; may raise, if it cannot.
DeviceLostError: nor can anything else from then on."""
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
    """Medians, by the tile's name; none: the default could not be launched."""
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tiles that could not be launched, and why."""

    @property
    def is_settled(self) -> bool:
        """Need the next start not measure it again?

        It chose among all tiles: one that failed may be the fastest with a later driver. Or the default
        failed, which leaves nothing to choose; a start that asked each time would meet it each time.
        """
        return not self.failed or not self.seconds


def choose_tiles(
    trials: Iterable[TileTrial],
    begin: Begin,
    clock: Callable[[], float],
    *,
    seconds: float = TUNING_SECONDS,
) -> dict[str, Choice]:
    """Measure the trials in their order, by name, until the time is over; the first matter most.

    What runs when the time ends is run to its end: one launch, or the compilation of one. ModelError: a tile
    has broken the device.
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
    """None: for want of time."""
    default, *others = trial.tiles
    launches = _Launches(trial, begin)
    launches.run(default)
    for tile in others if default in launches.times else ():
        if is_over():
            return None
        launches.run(tile)  # compiles it: not its time
    rounds = 0
    while default in launches.times and rounds < ROUNDS and not is_over():
        for tile in tuple(launches.times):
            launches.run(tile)
        rounds += 1
    if default in launches.failed:  # no memory for its inputs, for one: whoever serves goes on with it
        return Choice(default, {}, launches.failed)
    if rounds < FEWEST_ROUNDS:
        return None
    medians = {tile: median(times[1:]) for tile, times in launches.times.items()}
    return Choice(_fastest(medians, default), medians, launches.failed)


class _Launches:
    """One trial's: what each tile took, the first time included; who fails is left out from then on."""

    def __init__(self, trial: TileTrial, begin: Begin) -> None:
        self._trial, self._begin = trial, begin
        self._measure: Measure | None = None
        self.times: dict[str, list[float]] = {tile: [] for tile in trial.tiles}
        self.failed: dict[str, str] = {}

    def run(self, tile: str) -> None:
        """Launch it once. ModelError: nothing can be launched here any more."""
        try:
            if self._measure is None:
                self._measure = self._begin(self._trial)
            self.times[tile].append(self._measure(tile))
        except DeviceLostError as error:
            raise ModelError(
                f"the GPU failed while tiles were measured ({self._trial.name}, tile {tile}: {error}); start "
                "with --no-tune-kernels, which leaves this out"
            ) from error
        except Exception as error:  # one tile less to choose from
            self.failed[tile] = f"{type(error).__name__}: {error}".splitlines()[0]
            del self.times[tile]


def _fastest(medians: Mapping[str, float], default: str) -> str:
    best = min(medians, key=lambda name: medians[name])
    return best if medians[best] < (1 - LEAST_GAIN) * medians[default] else default
