"""The device's part of measuring tiles, on CPU tensors with something in place of CUDA's events and names."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from tests.engine.fused_rig import CPU, SMALL

from headway.engine import model_tiles, tile_stopwatch
from headway.engine.errors import DeviceLostError
from headway.engine.model_tiles import ModelTiles, record_in
from headway.engine.shard import WHOLE
from headway.engine.tile_stopwatch import TileStopwatch
from headway.kernels.cases import Trial
from headway.kernels.launch import H100, Chip
from headway.kernels.tile_trials import TileTrial

pytest.importorskip("triton")


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a device without CUDA was told, in order; its clock goes on by 1 ms at each event."""
    told: list[str] = []
    ticks = count()

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            self.at = 0

        def record(self) -> None:
            told.append("event")
            self.at = next(ticks)

        def synchronize(self) -> None:
            told.append("wait")

        def elapsed_time(self, end: Event) -> float:
            return float(end.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (8 << 20, 8 << 20))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: told.append("memory back"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(tile_stopwatch, "FLUSH_BYTES", 1 << 10)
    return told


def test_a_launch_is_timed_alone_and_its_inputs_are_made_once(happened: list[str]) -> None:
    def prepare(_device: torch.device, chip: Chip) -> Trial:
        assert chip is H100
        happened.append("inputs")

        def launch() -> tuple[()]:
            happened.append("launch")
            return ()

        return Trial(launch, launch)

    stopwatch = TileStopwatch(CPU, H100)
    measure = stopwatch(TileTrial("a", {"default": prepare, "wide": prepare}))
    assert [measure("default"), measure("wide"), measure("default")] == [1e-3] * 3
    timed = ["event", "launch", "event", "wait"]
    assert happened == ["inputs", *timed, "inputs", *timed, *timed]
    stopwatch.close()
    assert happened[-1] == "memory back"


@pytest.mark.parametrize("is_lost", [False, True])
def test_after_a_failed_launch_the_driver_is_asked_whether_others_can_follow(
    is_lost: bool, happened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch() -> tuple[()]:
        raise RuntimeError("a launch failed")

    def synchronize(_: torch.device) -> None:
        happened.append("asked")
        if is_lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    measure = TileStopwatch(CPU, H100)(TileTrial("a", {"default": lambda *_: Trial(launch, launch)}))
    told = (DeviceLostError, "access was encountered$") if is_lost else (RuntimeError, "^a launch failed$")
    with pytest.raises(told[0], match=told[1]):
        measure("default")
    assert happened[-1] == "asked"


def test_a_models_attention_is_really_launched_by_every_tile(
    happened: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(model_tiles, "DECODES", ((1, 5),))
    monkeypatch.setattr(model_tiles, "CHUNK", ((16, 16),))
    model = ModelTiles(SMALL, "none", None, torch.bfloat16, 16, 32, H100)
    record = record_in(str(tmp_path), CPU)
    assert record is not None
    assert (record.key.device, len(record.key.code)) == ("NVIDIA H200", 16)
    chosen = model.choose(TileStopwatch(CPU, H100), lambda: 0.0, record, WHOLE)
    assert chosen.origin == f"2 of 2 measured in 0.0 s, kept in {record.path}"
    assert set(chosen.names.values()) == {"default"}, "all take as long here"
    assert chosen.notes == ()
    assert "wait" in happened
    assert all(set(choice.seconds) == set(trial.tiles) for trial, choice in zip(
        model.trials, record.read().values(), strict=True
    ))  # fmt: skip


@pytest.mark.usefixtures("happened")
def test_other_kernels_have_another_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = record_in(str(tmp_path), CPU)
    source = tmp_path / "kernel.py"
    source.write_text("changed")
    monkeypatch.setattr(model_tiles, "MEASURED_CODE", (*model_tiles.MEASURED_CODE, source))
    after = record_in(str(tmp_path), CPU)
    assert before is not None
    assert after is not None
    assert before.path != after.path
    assert replace(before.key, code=after.key.code) == after.key
    assert record_in(None, CPU) is None
