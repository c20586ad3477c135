"""Names: a model's lane, and job ids as users see them, ``<lane>:<key>``.

A lane is one model and shard, ``<model with '/' written as '--'>:<shard>``; it is the hash tag of all its
Redis keys, so a job's keys can be told from its id alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Final, Self

from headway.queueing.errors import InvalidJobError, UnknownJobError
from headway.queueing.messages import JOB_KEY_PATTERN, MODEL_PATTERN

_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_KEY = re.compile(JOB_KEY_PATTERN.removesuffix("$") + r"\Z")
_MODEL = re.compile(MODEL_PATTERN.removesuffix("$") + r"\Z")
_ENTRY = re.compile(r"[0-9]{1,20}-[0-9]{1,20}\Z")
_LANE = re.compile(r"[A-Za-z0-9_.\-]{1,192}:[0-9]{1,4}\Z")


def lane_of(model: str, shard: int = 0) -> str:
    """The lane of a model; raises InvalidJobError for a name that cannot be one."""
    if len(model) > 128 or _MODEL.match(model) is None:
        raise InvalidJobError(f"model {model[:140]!r} is not a model name", param="model")
    if "--" in model.replace("/", "-"):
        # Hub names cannot have these either, and without them lane and model determine each other.
        raise InvalidJobError(
            f"model {model!r}: a name must not have '--', '-/' or '/-' in it", param="model"
        )
    return f"{model.replace('/', '--')}:{shard}"


def model_of(lane: str) -> str:
    """The model of a lane."""
    return lane.rpartition(":")[0].replace("--", "/")


def is_model_name(text: str) -> bool:
    """Whether a model can be called so."""
    try:
        lane_of(text)
    except InvalidJobError:
        return False
    return True


def check_key(key: str) -> str:
    """The key itself; raises InvalidJobError for one that no job can have."""
    if _KEY.match(key) is None:
        raise InvalidJobError(
            f"job key {key[:80]!r}: use 1 to 64 characters out of A-Z a-z 0-9 _ -",
            param="key",
            code="invalid_key",
        )
    return key


def check_entry_id(text: str) -> str:
    """The id of a stream's entry itself; raises UnknownJobError for a text that cannot be one."""
    if _ENTRY.match(text) is None:
        raise UnknownJobError(f"{text[:80]!r} is not a dead letter's id; one looks like 1736942400000-0")
    return text


@dataclass(frozen=True, slots=True)
class JobId:
    """A job's lane and its key inside the lane; ``str()`` is the id that users see."""

    lane: str
    key: str

    def __str__(self) -> str:
        return f"{self.lane}:{self.key}"

    @classmethod
    @lru_cache(maxsize=4096)  # asked for every token that is written or read, of the same few jobs
    def parse(cls, text: str) -> Self:
        """Split an id; raises UnknownJobError for a text that no job's id can be."""
        lane, _, key = text.rpartition(":")
        if _LANE.match(lane) is None or _KEY.match(key) is None:
            raise UnknownJobError(f"{text[:80]!r} is not a job id; one looks like smollm2-135m:0:01JDZ3…")
        return cls(lane, key)

    @classmethod
    def is_one(cls, text: str) -> bool:
        """Whether a job can be called so."""
        lane, _, key = text.rpartition(":")
        return _LANE.match(lane) is not None and _KEY.match(key) is not None


def new_key(clock: Callable[[], float], rng: Random) -> str:
    """A fresh ULID: 48 bits of milliseconds, 80 random bits, so that ids sort by creation."""
    value = (int(clock() * 1000) & (2**48 - 1)) << 80 | rng.getrandbits(80)
    return "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))
