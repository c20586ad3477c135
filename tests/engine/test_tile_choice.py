"""Which tile is chosen, on a clock and a chip that follow a script; and what becomes of it in a file."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.engine.errors import DeviceLostError, ModelError
from headway.engine.tile_choice import FEWEST_ROUNDS, ROUNDS, Choice, Measure, choose_tiles
from headway.engine.tile_record import TileRecord, TileRecordKey
from headway.kernels.launch import DEFAULT_TILE
from headway.kernels.tile_trials import TileTrial

KEY = TileRecordKey("NVIDIA H200", "3.6.0", "abc")
WIDE = Choice("wide", {DEFAULT_TILE: 2e-5, "wide": 1.5e-5})


def trial(name: str, *tiles: str) -> TileTrial:
    def prepare(*_: object) -> None:
        raise AssertionError("the script measures")

    return TileTrial(name, dict.fromkeys((DEFAULT_TILE, *tiles), prepare))  # type: ignore[arg-type]  # never called


class ScriptedChip:
    """Launches take what the script says, and the clock goes on by that and by what launching costs."""

    def __init__(self, seconds: Mapping[str, Mapping[str, float]], *, overhead: float = 0.0) -> None:
        self._seconds, self._overhead = seconds, overhead
        self.now = 100.0
        self.launched: list[tuple[str, str]] = []

    def __call__(self, trial: TileTrial) -> ScriptedMeasure:
        return ScriptedMeasure(self, trial.name)

    def clock(self) -> float:
        return self.now

    def launch(self, trial: str, tile: str) -> float:
        self.launched.append((trial, tile))
        self.now += self._overhead
        seconds = self._seconds[trial].get(tile)
        if seconds is None:
            raise MemoryError(f"{tile} takes more shared memory\nthan there is")
        # Now and then a launch takes long, as beside a neighbour's.
        return 3 * seconds if len(self.launched) % 7 == 0 else seconds


class ScriptedMeasure:
    def __init__(self, chip: ScriptedChip, trial: str) -> None:
        self._chip, self._trial = chip, trial

    def __call__(self, tile: str) -> float:
        return self._chip.launch(self._trial, tile)


def test_the_fastest_is_chosen_and_each_was_measured_as_often_in_turns() -> None:
    chip = ScriptedChip({"a": {DEFAULT_TILE: 1.0, "wide": 0.9, "short": 0.7}})
    choices = choose_tiles([trial("a", "wide", "short")], chip, chip.clock)
    assert choices["a"].tile == "short"
    assert choices["a"].failed == {}
    tiles = [tile for _, tile in chip.launched]
    assert Counter(tiles) == dict.fromkeys((DEFAULT_TILE, "wide", "short"), ROUNDS + 1)
    assert tiles[3:] == [DEFAULT_TILE, "wide", "short"] * ROUNDS


@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_the_default_stays_unless_another_is_faster_by_more_than_noise(wide: float, short: float) -> None:
    found = choose_tiles(
        [trial("a", "wide", "short")],
        lambda _: {DEFAULT_TILE: 1.0, "wide": wide, "short": short}.__getitem__,
        lambda: 0.0,
    )["a"]
    if min(wide, short) >= 0.97:
        assert found.tile == DEFAULT_TILE
    else:
        assert found.tile == ("wide" if wide <= short else "short")
    assert found.seconds == {DEFAULT_TILE: 1.0, "wide": wide, "short": short}


def test_a_tile_that_cannot_be_launched_leaves_the_others_to_choose_from() -> None:
    chip = ScriptedChip({"a": {DEFAULT_TILE: 1.0, "short": 0.5}})
    found = choose_tiles([trial("a", "wide", "short")], chip, chip.clock)["a"]
    assert found.tile == "short"
    assert found.failed == {"wide": "MemoryError: wide takes more shared memory"}


def test_a_trial_whose_default_cannot_be_launched_keeps_it_says_why_and_stops_nobody() -> None:
    chip = ScriptedChip({"a": {"wide": 1.0}, "b": {DEFAULT_TILE: 1.0, "wide": 0.5}})
    found = choose_tiles([trial("a", "wide"), trial("b", "wide")], chip, chip.clock)
    assert {name: choice.tile for name, choice in found.items()} == {"a": DEFAULT_TILE, "b": "wide"}
    assert found["a"] == Choice(
        DEFAULT_TILE, {}, {DEFAULT_TILE: "MemoryError: default takes more shared memory"}
    )
    assert chip.launched[:2] == [("a", DEFAULT_TILE), ("b", DEFAULT_TILE)], "and nothing else of it is tried"


class FailsAt:
    """A chip whose launch number ``at``, from 0 on, raises this."""

    def __init__(self, at: int, error: Exception) -> None:
        self._at, self._error = at, error
        self._launched: list[str] = []

    def __call__(self, _: TileTrial) -> Measure:
        return self._launch

    def _launch(self, tile: str) -> float:
        self._launched.append(tile)
        if len(self._launched) == self._at + 1:
            raise self._error
        return 0.5 if tile == "wide" else 1.0


@pytest.mark.parametrize("at", [0, 1, 7, 8])
def test_a_tile_that_breaks_the_device_ends_the_start_which_names_it_and_what_to_do_without(at: int) -> None:
    tile = "wide" if at % 2 else DEFAULT_TILE
    chip = FailsAt(at, DeviceLostError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(ModelError, match=rf"\(a, tile {tile}: CUDA error: .* with --no-tune-kernels"):
        choose_tiles([trial("a", "wide")], chip, lambda: 0.0)


@pytest.mark.parametrize(("at", "failed"), [(7, "wide"), (8, DEFAULT_TILE)])
def test_whichever_tile_fails_after_some_rounds_the_default_stays(at: int, failed: str) -> None:
    found = choose_tiles([trial("a", "wide")], FailsAt(at, RuntimeError("")), lambda: 0.0)["a"]
    assert (found.tile, found.failed) == (DEFAULT_TILE, {failed: "RuntimeError: "})
    assert set(found.seconds) == ({DEFAULT_TILE} if failed == "wide" else set())


def test_only_a_choice_among_all_tiles_or_none_at_all_is_kept_for_the_next_start() -> None:
    assert WIDE.is_settled
    assert not Choice("wide", {DEFAULT_TILE: 2e-5, "wide": 1e-5}, {"short": "cannot"}).is_settled
    assert Choice(DEFAULT_TILE, {}, {DEFAULT_TILE: "cannot"}).is_settled


@given(st.integers(0, 200))
def test_no_launch_begins_after_the_time_but_a_tile_s_first_and_half_a_trial_is_no_choice(
    launches: int,
) -> None:
    times = {DEFAULT_TILE: 1.0, "wide": 0.5}
    chip = ScriptedChip({"a": times, "b": times, "c": times}, overhead=1.0)
    found = choose_tiles([trial(name, "wide") for name in "abc"], chip, chip.clock, seconds=launches)
    whole = 2 * (ROUNDS + 1)
    # A round that has begun is ended.
    assert len(chip.launched) <= min(3 * whole, launches + 1)
    enough = 2 * (FEWEST_ROUNDS + 1)
    assert len(found) == sum(launches > begun + enough - 2 for begun in (0, whole, 2 * whole))
    assert set(found) == set("abc"[: len(found)]), "the first matter most"


def test_what_was_chosen_is_read_again_and_new_choices_come_beside_it(tmp_path: Path) -> None:
    record = TileRecord(tmp_path / "new" / "folder", KEY)
    assert record.read() == {}
    record.add({"a": WIDE})
    record.add({"b": Choice(DEFAULT_TILE, {DEFAULT_TILE: 1e-5})})
    record.add({"c": Choice(DEFAULT_TILE, {}, {DEFAULT_TILE: "no memory"})})
    assert record.read() == {
        "a": WIDE,
        "b": Choice(DEFAULT_TILE, {DEFAULT_TILE: 1e-5}),
        "c": Choice(DEFAULT_TILE, {}),
    }
    content = json.loads(record.path.read_text())
    assert (content["device"], content["triton"], content["code"]) == ("NVIDIA H200", "3.6.0", "abc")
    assert content["choices"]["a"] == {"tile": "wide", "microseconds": {"default": 20.0, "wide": 15.0}}


@pytest.mark.parametrize(
    "other",
    [
        TileRecordKey("NVIDIA H100", "3.6.0", "abc"),
        TileRecordKey("NVIDIA H200", "3.7.0", "abc"),
        TileRecordKey("NVIDIA H200", "3.6.0", "abd"),
    ],
    ids=["chip", "compiler", "kernels"],
)
def test_another_chip_compiler_or_kernel_has_a_record_of_its_own(
    other: TileRecordKey, tmp_path: Path
) -> None:
    TileRecord(tmp_path, KEY).add({"a": WIDE})
    assert TileRecord(tmp_path, other).read() == {}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"choices": 3}', b"[" * 100_000, bytes(range(256)), b"\xff"],
    ids=["empty", "cut", "list", "number", "deep", "bytes", "no text"],
)
def test_a_damaged_record_is_told_and_made_anew(content: bytes, tmp_path: Path) -> None:
    record = TileRecord(tmp_path, KEY)
    record.path.write_bytes(content)
    with pytest.raises(ValueError, match=r"tiles-\w+\.json is damaged"):
        record.read()
    record.add({"a": WIDE})
    assert record.read() == {"a": WIDE}


@pytest.mark.parametrize(
    "entry",
    [
        None,
        3,
        "wide",
        {"tile": 3, "microseconds": {}},
        {"tile": "wide"},
        {"tile": "wide", "microseconds": [1]},
        {"tile": "wide", "microseconds": {"wide": "fast"}},
        {"tile": "wide", "microseconds": {"default": 1.0}},
        {"tile": "wide", "microseconds": {}},
        *(
            {"tile": "wide", "microseconds": {"wide": 1.0, "default": time}}
            for time in (0, 0.0, -1, True, None, 10**400, 10**308 * 9, 5e-324, math.nan, math.inf)
        ),
    ],
    ids=lambda entry: str(entry)[:60],
)
def test_an_entry_that_nobody_wrote_is_as_if_it_were_not_there(entry: object, tmp_path: Path) -> None:
    record = TileRecord(tmp_path, KEY)
    record.add({"a": WIDE})
    content = json.loads(record.path.read_text())
    content["choices"]["b"] = entry
    record.path.write_text(json.dumps(content))
    assert record.read() == {"a": WIDE}
