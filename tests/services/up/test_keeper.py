"""A kept process comes back after its death, unless it has never worked: then its end is an error to show."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from headway.services import keeper as keeper_module
from headway.services.errors import StartError
from headway.services.keeper import Death, Keeper, KeeperState
from headway.services.process import ChildProcess, ProcessMark


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "FIRST_PAUSE_SECONDS", 0.01)


class Kept:
    """A keeper of a shell script, and what it told."""

    def __init__(
        self, script: str, log: Path, *, serves_when_started: bool = False, is_vital: bool = True
    ) -> None:
        self.script = script
        self.log = log
        self.starts = 0
        self.deaths: list[Death] = []
        self.states: list[KeeperState] = []
        self.keeper = Keeper(
            "child",
            self.start,
            changed=lambda keeper: self.states.append(keeper.state),
            died=self.died,
            serves_when_started=serves_when_started,
            is_vital=is_vital,
        )

    async def start(self) -> ChildProcess:
        self.starts += 1
        return ChildProcess.spawn("child", ["sh", "-c", self.script], log_path=self.log)

    async def died(self, _: Keeper, death: Death, pause_seconds: float) -> None:
        assert pause_seconds < 1
        self.deaths.append(death)


async def test_what_cannot_work_is_an_error_at_once_with_its_own_words(tmp_path: Path) -> None:
    kept = Kept("echo 'no such model' >&2; exit 2", tmp_path / "log")
    with pytest.raises(StartError, match="no such model"):
        await kept.keeper.run()
    assert kept.starts == 1


async def test_other_ends_before_readiness_are_tried_three_times(tmp_path: Path) -> None:
    kept = Kept("exit 7", tmp_path / "log")
    with pytest.raises(StartError, match="exit code 7"):
        await kept.keeper.run()
    assert kept.starts == keeper_module.GIVE_UP_AFTER


async def test_what_is_not_vital_is_tried_again_for_ever_and_never_called_ready(tmp_path: Path) -> None:
    kept = Kept("exit 2", tmp_path / "log", is_vital=False)
    running = asyncio.create_task(kept.keeper.run())
    async with asyncio.timeout(20):
        while kept.starts < 5:
            await asyncio.sleep(0.01)
    running.cancel()
    await kept.keeper.stop(10)
    assert KeeperState.READY not in kept.states
    assert not any(death.was_ready for death in kept.deaths)


async def test_a_kill_at_the_start_hints_at_the_memory(tmp_path: Path) -> None:
    kept = Kept("kill -9 $$", tmp_path / "log")
    with pytest.raises(StartError, match="SIGKILL") as error:
        await kept.keeper.run()
    assert "--kv-cache" in str(error.value.hint)


async def test_what_has_served_is_restarted_for_ever_and_its_death_is_told_each_time(tmp_path: Path) -> None:
    kept = Kept("exit 2", tmp_path / "log", serves_when_started=True)
    running = asyncio.create_task(kept.keeper.run())
    async with asyncio.timeout(20):
        while kept.starts < 5:
            await asyncio.sleep(0.01)
    running.cancel()
    assert len(kept.deaths) >= 4
    assert all(death.was_ready and death.code == 2 for death in kept.deaths)
    assert kept.states[:4] == [
        KeeperState.STARTING,
        KeeperState.READY,
        KeeperState.RESTARTING,
        KeeperState.STARTING,
    ]
    if kept.keeper.child is not None:
        await kept.keeper.child.wait()


async def test_a_child_that_ignores_the_request_is_killed_after_its_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = ChildProcess.spawn(
        "deaf", ["sh", "-c", "trap '' TERM; echo up; sleep 60 & wait; wait"], log_path=log
    )
    async with asyncio.timeout(10):
        while b"up" not in log.read_bytes():
            await asyncio.sleep(0.01)
    assert await child.stop(0.2) is False
    assert await child.wait() == -9


@pytest.mark.parametrize(("number", "said"), [(errno.EMFILE, "ulimit -n"), (errno.EAGAIN, "ulimit -u")])
async def test_a_child_that_cannot_be_watched_is_not_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    seen: list[int] = []

    def refuse(pid: int) -> int:
        seen.append(pid)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(StartError, match="child cannot be started") as error:
        ChildProcess.spawn("child", ["sleep", "60"], log_path=tmp_path / "log")
    assert said in str(error.value.hint)
    assert ProcessMark.of(seen[0]) is None
