"""Which tile is chosen, on a clock and a chip that follow a script; and what becomes of it in a file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.engine.tile_choice import FEWEST_ROUNDS, ROUNDS, Choice, choose_tiles
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


def test_a_trial_whose_default_cannot_be_launched_has_no_choice_and_stops_nobody() -> None:
    chip = ScriptedChip({"a": {"wide": 1.0}, "b": {DEFAULT_TILE: 1.0, "wide": 0.5}})
    found = choose_tiles([trial("a", "wide"), trial("b", "wide")], chip, chip.clock)
    assert {name: choice.tile for name, choice in found.items()} == {"b": "wide"}


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
    assert record.read() == {"a": WIDE, "b": Choice(DEFAULT_TILE, {DEFAULT_TILE: 1e-5})}
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
    ],
    ids=str,
)
def test_an_entry_that_nobody_wrote_is_as_if_it_were_not_there(entry: object, tmp_path: Path) -> None:
    record = TileRecord(tmp_path, KEY)
    record.add({"a": WIDE})
    content = json.loads(record.path.read_text())
    content["choices"]["b"] = entry
    record.path.write_text(json.dumps(content))
    assert record.read() == {"a": WIDE}
