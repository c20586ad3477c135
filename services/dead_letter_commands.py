"""What ``headway dlq`` does once its options are read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from headway.queueing.client import Client
from headway.queueing.errors import (
    InvalidJobError,
    QueueFullError,
    QueueUnavailableError,
    UnknownJobError,
)
from headway.queueing.protocol import DeadLetter
from headway.services.columns import Column, table
from headway.services.connection import locate, not_reachable
from headway.services.errors import ServiceError
from headway.services.job_commands import with_client
from headway.services.job_listing import models_of
from headway.services.job_timeline import ShownJob, shown_job
from headway.services.job_timeline import as_json as job_as_json
from headway.services.job_timeline import as_lines as job_as_lines
from headway.services.units import show_duration

ALL: Final = 10_000
"""More than a lane keeps."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter and the model whose lane it lies in."""

    model: str
    letter: DeadLetter

    @property
    def died_ms(self) -> int:
        """When: the server's clock is the first part of the entry's id."""
        return int(self.letter.entry_id.partition("-")[0])


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which letters a command is about: these ids (of letters or of their jobs), one reason's, or all."""

    ids: tuple[str, ...] = ()
    reason: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Redriven:
    """A letter's job and the new one, or why there is none."""

    entry_id: str
    job_id: str
    new_job_id: str | None
    problem: str | None = None


Confirm = Callable[[Sequence[Letter]], None]
"""Says what will be done with the letters, and returns if it may be."""


def list_letters(chosen: Chosen, redis_url: str | None, state_dir: Path) -> list[Letter]:
    """The newest first. Raises ServiceError."""
    url, _ = locate(redis_url, state_dir)

    async def find(client: Client) -> list[Letter]:
        return await _find(client, chosen)

    return with_client(url, find)


def show_letter(
    letter_id: str, model: str | None, redis_url: str | None, state_dir: Path
) -> tuple[Letter, ShownJob | None]:
    """A letter, and its job's record while that is kept. Raises ServiceError."""
    url, _ = locate(redis_url, state_dir)

    async def find(client: Client) -> tuple[Letter, ShownJob | None]:
        (letter,) = await _find(client, Chosen((letter_id,), model=model))
        try:
            return letter, await shown_job(client, letter.letter.job_id)
        except UnknownJobError:
            return letter, None

    return with_client(url, find)


def redrive(
    chosen: Chosen, confirm: Confirm, redis_url: str | None, state_dir: Path
) -> tuple[list[Redriven], ServiceError | None]:
    """Post the letters' bodies as new jobs, the oldest first; what was done, and what stopped it.

    Raises ServiceError when there is nothing to do.
    """
    letters = _confirmed(chosen, confirm, redis_url, state_dir)
    url, _ = locate(redis_url, state_dir)

    async def act(client: Client) -> tuple[list[Redriven], ServiceError | None]:
        done: list[Redriven] = []
        for each in reversed(letters):
            entry_id, job_id = each.letter.entry_id, each.letter.job_id
            try:
                posted = await client.queue.redrive(each.model, entry_id)
                done.append(Redriven(entry_id, job_id, posted.job_id))
            except (UnknownJobError, InvalidJobError) as error:  # it stands in no other's way
                done.append(Redriven(entry_id, job_id, None, str(error)))
            except QueueUnavailableError as error:
                return done, not_reachable(url, error)
            except QueueFullError as error:
                left = len(letters) - len(done)
                return done, ServiceError(
                    f"{error}; {left} of {len(letters)} letters are where they were",
                    hint=f"the same again in {error.retry_after_seconds:.0f} s",
                )
        return done, None

    return with_client(url, act)


def purge(chosen: Chosen, confirm: Confirm, redis_url: str | None, state_dir: Path) -> int:
    """Remove the letters and forget their bodies; how many there were. Raises ServiceError."""
    letters = _confirmed(chosen, confirm, redis_url, state_dir)
    url, _ = locate(redis_url, state_dir)

    async def act(client: Client) -> int:
        models = dict.fromkeys(each.model for each in letters)
        removed = 0
        for model in models:
            ids = [each.letter.entry_id for each in letters if each.model == model]
            removed += await client.queue.purge(model, ids)
        return removed

    return with_client(url, act)


def _confirmed(chosen: Chosen, confirm: Confirm, redis_url: str | None, state_dir: Path) -> list[Letter]:
    """The letters, asked about while no connection is open: a person may take long to answer."""
    letters = list_letters(chosen, redis_url, state_dir)
    if not letters:
        why = "" if chosen.reason is None else f" with the reason {chosen.reason}"
        raise ServiceError(f"there is no dead letter{why} here", hint="headway dlq list")
    confirm(letters)
    return letters


async def _find(client: Client, chosen: Chosen) -> list[Letter]:
    letters = [
        Letter(model, letter)
        for model in await models_of(client, chosen.model)
        for letter in await client.queue.dead_letters(model, ALL)
    ]
    if chosen.ids:
        return [_by_id(letters, each) for each in dict.fromkeys(chosen.ids)]
    letters.sort(key=lambda each: -each.died_ms)
    return [each for each in letters if chosen.reason in {None, each.letter.reason}]


def _by_id(letters: Sequence[Letter], name: str) -> Letter:
    found = [each for each in letters if name in {each.letter.entry_id, each.letter.job_id}]
    if not found:
        raise ServiceError(f"no dead letter {name[:80]!r} here", hint="headway dlq list")
    if len(found) > 1:
        models = " or --model ".join(each.model for each in found)
        raise ServiceError(f"several lanes have a dead letter {name}", hint=f"--model {models}")
    return found[0]


# -- for people and scripts -----------------------------------------------------------------------------

_COLUMNS: Final = (
    Column("ID"),
    Column("AGE", is_number=True),
    Column("TENANT", may_shrink=True, may_go=1),
    Column("REASON", may_shrink=True),
    Column("ATTEMPTS", is_number=True, may_go=3),
    Column("TOKENS", is_number=True, may_go=2),
    Column("JOB"),
)


def as_json(each: Letter) -> dict[str, Any]:
    """A line for scripts."""
    return {**asdict(each.letter), "model": each.model, "died_ms": each.died_ms}


def as_lines(letters: Sequence[Letter], width: int | None) -> list[str]:
    """The table for people."""
    if not letters:
        return ["no dead letters"]
    now_ms = time.time() * 1000
    rows = [
        (
            each.letter.entry_id,
            show_duration((now_ms - each.died_ms) / 1000),
            each.letter.tenant,
            each.letter.reason,
            str(each.letter.attempts),
            f"{each.letter.committed_tokens:,}",
            each.letter.job_id,
        )
        for each in letters
    ]
    return table(_COLUMNS, rows, width)


def shown_as_json(letter: Letter, job: ShownJob | None) -> dict[str, Any]:
    """The letter and its job's record."""
    return {**as_json(letter), "job": None if job is None else job_as_json(job)}


def shown_as_lines(letter: Letter, job: ShownJob | None, width: int | None) -> list[str]:
    """The letter, then its job's record and timeline."""
    lines = [f"{'letter':<10}{letter.letter.entry_id}", f"{'reason':<10}{letter.letter.reason}"]
    if job is not None:
        return [*lines, *job_as_lines(job, width)]
    return [
        *lines,
        f"{'job':<10}{letter.letter.job_id}",
        f"{'tenant':<10}{letter.letter.tenant}",
        f"{'tokens':<10}{letter.letter.committed_tokens:,}",
        "",
        "the job's record is no longer kept; its body is, for a week, and can be redriven",
    ]
