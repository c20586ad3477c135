"""Files and batches: what is known of them, beside the jobs. The files' bytes are not here.

Each write is one command that is either repeated harmlessly (a whole value again) or counts once (the first
of several wins, and each learns whether it was the first). There is nothing to lock and nothing to roll back.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, cast

from headway.queueing.batch import (
    Batch,
    Checked,
    NewBatch,
    Outcome,
    Part,
    Tally,
    decode_part,
    encode,
)
from headway.queueing.batch_replies import batch_of, readable_batch, readable_file, texts_of
from headway.queueing.batch_turns import BatchTurns
from headway.queueing.keys import BATCHES, BATCHES_OPEN, FILES_EXPIRING, PLACE, BatchKeys, FileKeys
from headway.queueing.node import Argument, Reply
from headway.queueing.once import Once
from headway.queueing.stored_file import StoredFile, decode_file

Order = Literal["asc", "desc"]
FILES_KEPT: Final = 10_000
"""Of one tenant: more are refused until some are deleted or expire."""
BATCHES_KEPT: Final = 10_000
"""Of one tenant: more are refused until some are forgotten, 30 days after their end."""


class Commands(Protocol):
    """The commands that a store is made of; a server's, or those of ``MemoryCommands``."""

    async def call(self, *command: Argument) -> Reply:
        """One command."""
        ...

    async def pipeline(self, commands: Iterable[tuple[Argument, ...]]) -> list[Reply]:
        """Several in one round trip; a command's own error is its reply."""
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """Some ids of a listing, and whether more follow."""

    ids: tuple[str, ...]
    has_more: bool


class BatchStore:
    """Records of files and batches. All clocks are the server's. Raises QueueUnavailableError."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self.turns = BatchTurns(commands)
        self.once = Once(commands)

    async def now_ms(self) -> int:
        """The time by which all records go."""
        seconds, micros = cast("list[bytes]", await self._commands.call("TIME"))
        return int(seconds) * 1000 + int(micros) // 1000

    async def queue_id(self) -> str:
        """The queue's name, made by whoever asks first; a server that has lost its data gets another."""
        name = await self._commands.call("GET", PLACE)
        if name is None:
            await self._commands.call("SET", PLACE, f"queue-{secrets.token_hex(12)}", "NX")
            name = await self._commands.call("GET", PLACE)
        return cast("bytes", name).decode()

    # -- files ----------------------------------------------------------------------------------------

    async def add_file(self, file: StoredFile) -> None:
        """Make a file known whose bytes are all in place; again: no change."""
        await self._all(
            ("SET", FileKeys.record(file.file_id), file.encode()),
            ("ZADD", FileKeys.of_tenant(file.tenant), file.created_ms, file.file_id),
            ("ZADD", FILES_EXPIRING, file.expires_ms, file.file_id),
        )

    async def file(self, file_id: str) -> StoredFile | None:
        """A file that is there and has not expired."""
        text = await self._commands.call("GET", FileKeys.record(file_id))
        file = decode_file(text) if isinstance(text, bytes) else None
        return file if file is not None and file.expires_ms > await self.now_ms() else None

    async def files(self, file_ids: Sequence[str]) -> list[StoredFile]:
        """Those of them that are there and can be read, in order."""
        replies = await self._all(*(("GET", FileKeys.record(file_id)) for file_id in file_ids))
        now_ms = await self.now_ms()
        return [file for file in map(readable_file, replies) if file is not None and file.expires_ms > now_ms]

    async def has_file_record(self, file_id: str) -> bool:
        """Whether anything is known of a file, readable or not."""
        return isinstance(await self._commands.call("GET", FileKeys.record(file_id)), bytes)

    async def file_page(self, tenant: str, after: str | None, limit: int, order: Order) -> Page | None:
        """A tenant's files by their creation; None: ``after`` is none of them."""
        return await self._page(FileKeys.of_tenant(tenant), after, limit, order)

    async def count_files(self, tenant: str) -> int:
        """How many files a tenant has."""
        return cast("int", await self._commands.call("ZCARD", FileKeys.of_tenant(tenant)))

    async def remove_file(self, file: StoredFile) -> None:
        """Forget a file; its bytes are the caller's to remove, before."""
        await self._all(
            ("DEL", FileKeys.record(file.file_id)),
            ("ZREM", FileKeys.of_tenant(file.tenant), file.file_id),
            ("ZREM", FILES_EXPIRING, file.file_id),
        )

    async def expired_files(self, limit: int) -> list[StoredFile]:
        """Files whose time is over, the oldest first; what cannot be read is kept, and passed over."""
        until, found, passed = await self.now_ms(), list[StoredFile](), 0
        while len(found) < limit and (ids := await self._until(FILES_EXPIRING, until, passed, limit)):
            replies = await self._all(*(("GET", FileKeys.record(file_id)) for file_id in ids))
            lost = [each for each, text in zip(ids, replies, strict=True) if not isinstance(text, bytes)]
            await self._all(*(("ZREM", FILES_EXPIRING, file_id) for file_id in lost))
            found += [file for file in map(readable_file, replies) if file is not None]
            passed += len(ids) - len(lost)
        return found[:limit]

    # -- batches --------------------------------------------------------------------------------------

    async def add_batch(self, asked: NewBatch) -> None:
        """Accept a batch; it is worked on from now on."""
        await self._all(
            ("HSETNX", BatchKeys(asked.batch_id).record, "created", encode(asked)),
            ("ZADD", BATCHES_OPEN, asked.created_ms, asked.batch_id),
            ("ZADD", BatchKeys.of_tenant(asked.tenant), asked.created_ms, asked.batch_id),
            ("ZADD", BATCHES, asked.created_ms, asked.batch_id),
        )

    async def batch(self, batch_id: str) -> Batch | None:
        """All that is known of a batch."""
        return batch_of(await self._commands.call("HGETALL", BatchKeys(batch_id).record))

    async def batches(self, batch_ids: Sequence[str]) -> list[Batch]:
        """Those of them that are there and can be read, in order."""
        replies = await self._all(*(("HGETALL", BatchKeys(batch_id).record) for batch_id in batch_ids))
        return [batch for batch in map(readable_batch, replies) if batch is not None]

    async def batch_page(self, tenant: str, after: str | None, limit: int) -> Page | None:
        """A tenant's batches, the newest first; None: ``after`` is none of them."""
        return await self._page(BatchKeys.of_tenant(tenant), after, limit, "desc")

    async def count_batches(self, tenant: str) -> int:
        """How many batches of a tenant are kept."""
        return cast("int", await self._commands.call("ZCARD", BatchKeys.of_tenant(tenant)))

    async def open_batches(self) -> tuple[str, ...]:
        """Batches that somebody must work on, those that wait longest first."""
        return tuple(texts_of(await self._commands.call("ZRANGE", BATCHES_OPEN, 0, -1)))

    async def count_open(self) -> int:
        """How many they are."""
        return cast("int", await self._commands.call("ZCARD", BATCHES_OPEN))

    async def oldest_open_ms(self) -> int | None:
        """When the oldest of them was accepted, readable or not; None: there is none."""
        replies = await self._all(*(("ZSCORE", BATCHES, each) for each in await self.open_batches()))
        return min((int(float(cast("bytes", reply))) for reply in replies if reply is not None), default=None)

    async def batches_until(self, created_ms: int, limit: int, *, after: int = 0) -> tuple[str, ...]:
        """Batches that were accepted up to then, the oldest first; ``after``: without the first so many."""
        return tuple(await self._until(BATCHES, created_ms, after, limit))

    async def close_batch(self, batch_id: str) -> None:
        """Nothing more is to be done for it."""
        await self._commands.call("ZREM", BATCHES_OPEN, batch_id)

    async def cancel_batch(self, batch_id: str) -> None:
        """Ask for its end; again, or after its end: no change."""
        await self._once(batch_id, "cancelling", str(await self.now_ms()).encode())

    async def mark_checked(self, batch_id: str, checked: Checked) -> None:
        """Its input is sound."""
        await self._once(batch_id, "checked", encode(checked))

    async def mark_finalizing(self, batch_id: str) -> None:
        """All its lines are done; its files are being put together."""
        await self._once(batch_id, "finalizing", str(await self.now_ms()).encode())

    async def end_batch(self, batch_id: str, outcome: Outcome) -> bool:
        """How it ended; False: somebody else has said so before, and theirs counts."""
        return await self._once(batch_id, "outcome", encode(outcome))

    async def mark_told(self, batch_id: str) -> None:
        """Its end is on its way to the tenant's webhooks."""
        await self._once(batch_id, "told", b"1")

    async def show_progress(self, batch_id: str, tally: Tally) -> None:
        """How far it is, for whoever asks; nothing is decided by it."""
        await self._commands.call("HSET", BatchKeys(batch_id).record, "progress", encode(tally))

    async def forget_batch(self, asked: NewBatch) -> None:
        """Remove a batch and all its parts."""
        keys = BatchKeys(asked.batch_id)
        await self._all(
            ("ZREM", BATCHES_OPEN, asked.batch_id),
            ("DEL", keys.parts),
            ("DEL", keys.record),
            ("ZREM", BatchKeys.of_tenant(asked.tenant), asked.batch_id),
            ("ZREM", BATCHES, asked.batch_id),
        )

    # -- parts ----------------------------------------------------------------------------------------

    async def commit_part(self, batch_id: str, number: int, part: Part) -> bool:
        """The results of a part, once and for all; False: it was committed before, and that counts."""
        return await self._first(BatchKeys(batch_id).parts, str(number), encode(part))

    async def parts(self, batch_id: str) -> dict[int, Part]:
        """The committed parts."""
        flat = cast("list[bytes]", await self._commands.call("HGETALL", BatchKeys(batch_id).parts))
        return {int(n): decode_part(text) for n, text in zip(flat[::2], flat[1::2], strict=True)}

    async def drop_parts(self, batch_id: str) -> None:
        """After the end, nobody needs them."""
        await self._commands.call("DEL", BatchKeys(batch_id).parts)

    # -- turns ----------------------------------------------------------------------------------------

    async def take_turn(self, what: str, holder: str, seconds: float) -> bool:
        """Whether this process is to do something now; nobody else is for so long.

        It saves work; nothing depends on it: two holders at once do the same work, and one result counts.
        """
        reply = await self._commands.call(
            "SET", BatchKeys.turn(what), holder, "NX", "PX", int(seconds * 1000)
        )
        return reply is not None

    async def keep_turn(self, what: str, holder: str, seconds: float) -> bool:
        """Have it for longer; False: it was lost."""
        key = BatchKeys.turn(what)
        if await self._commands.call("GET", key) != holder.encode():
            return False
        return await self._commands.call("PEXPIRE", key, int(seconds * 1000)) == 1

    async def end_turn(self, what: str, holder: str) -> None:
        """Let others."""
        key = BatchKeys.turn(what)
        if await self._commands.call("GET", key) == holder.encode():
            await self._commands.call("DEL", key)

    async def has_turn(self, what: str) -> bool:
        """Whether somebody has it."""
        return await self._commands.call("GET", BatchKeys.turn(what)) is not None

    # -------------------------------------------------------------------------------------------------

    async def _once(self, batch_id: str, fact: str, value: bytes) -> bool:
        return await self._first(BatchKeys(batch_id).record, fact, value)

    async def _first(self, key: str, field: str, value: bytes) -> bool:
        """Write a field that nobody wrote yet; whether it now holds our value.

        Asked back rather than told by the reply: a command whose reply was lost is sent a second time.
        """
        if await self._commands.call("HSETNX", key, field, value) == 1:
            return True
        return await self._commands.call("HGET", key, field) == value

    async def _page(self, key: str, after: str | None, limit: int, order: Order) -> Page | None:
        start = 0
        if after is not None:
            rank = await self._commands.call("ZRANK" if order == "asc" else "ZREVRANK", key, after)
            if rank is None:
                return None
            start = cast("int", rank) + 1
        turned = () if order == "asc" else ("REV",)
        ids = texts_of(await self._commands.call("ZRANGE", key, start, start + limit, *turned))
        return Page(tuple(ids[:limit]), len(ids) > limit)

    async def _until(self, key: str, score: int, start: int, limit: int) -> list[str]:
        """Members of up to that score, from the lowest on."""
        return texts_of(await self._commands.call("ZRANGEBYSCORE", key, "-inf", score, "LIMIT", start, limit))

    async def _all(self, *commands: tuple[Argument, ...]) -> list[Reply]:
        """Their replies; raises the first error among them."""
        replies = await self._commands.pipeline(commands) if commands else []
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies
