"""The built-in model ``scripted``: a toy for drills and tests that needs no torch and no files.

It answers with letters that depend on the whole history of a request, the same on every worker, so a resumed
answer can be compared with a calm run's. It is never the default and understands nothing.

    scripted:ms_per_step=5,blocks=1024,kill_on=!       options after the colon, each with a default
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

from headway.engine.errors import RequestError
from headway.engine.scripted import EOS, LETTERS, ScriptedRunner, StepCost
from headway.engine.values import Chunk
from headway.services.errors import UsageError

TOY_MODEL: Final = "scripted"


@dataclass(frozen=True, slots=True)
class ToyOptions:
    """How the toy behaves. The drills act when their character is in a chunk's tokens, as in a prompt."""

    ms_per_step: float = 5.0
    us_per_token: float = 0.0
    """Added for each token that a step computes, so that prefill takes time."""
    blocks: int = 1024
    block_size: int = 16
    max_model_len: int = 4096
    ends: int = 0
    """1: answers end by themselves, after 28 tokens on average. 0: at their max_tokens."""
    fail_on: str = ""
    """Drill: the request fails, the worker lives."""
    kill_on: str = ""
    """Drill: the worker process gets SIGKILL."""
    hang_on: str = ""
    """Drill: the step never ends."""
    break_on: str = ""
    """Drill: the device breaks, for this and every later step."""


def is_toy(model: str) -> bool:
    """Whether a model name means the toy."""
    return model.partition(":")[0] == TOY_MODEL


def parse_toy(model: str) -> ToyOptions:
    """Read ``scripted[:option=value,...]``; raises UsageError naming the option that is wrong."""
    options = model.partition(":")[2]
    defaults = ToyOptions()
    known: dict[str, Callable[[str], Any]] = {
        field.name: type(getattr(defaults, field.name)) for field in fields(ToyOptions)
    }
    values: dict[str, Any] = {}
    for option in filter(None, options.split(",")):
        name, _, text = option.partition("=")
        if name not in known:
            raise UsageError(f"the model {TOY_MODEL!r} has no option {name!r}", hint=", ".join(known))
        try:
            values[name] = known[name](text)
        except ValueError:
            raise UsageError(f"{TOY_MODEL}: {name}={text!r} has the wrong form") from None
    return ToyOptions(**values)


def toy_runner(options: ToyOptions) -> ScriptedRunner:
    """The runner; it really sleeps for as long as a step is said to take."""
    return ScriptedRunner(
        block_count=options.blocks,
        block_size=options.block_size,
        max_model_len=min(options.max_model_len, options.blocks * options.block_size),
        alphabet=(*LETTERS, EOS) if options.ends else LETTERS,
        cost=StepCost(per_step=options.ms_per_step / 1e3, per_new_token=options.us_per_token / 1e6),
        sleep=time.sleep,
        fails=_drills(options),
    )


class BrokenDeviceError(Exception):
    """Drill: what a driver raises once the device is gone."""


def _drills(options: ToyOptions) -> Callable[[Chunk], Exception | None]:
    is_broken = threading.Event()

    def fails(chunk: Chunk) -> Exception | None:
        def holds(marks: str) -> bool:
            return any(mark in chunk.token_ids for mark in marks.encode())

        if holds(options.kill_on):
            os.kill(os.getpid(), signal.SIGKILL)
        if holds(options.hang_on):
            threading.Event().wait()
        if holds(options.break_on):
            is_broken.set()
        if is_broken.is_set():
            return BrokenDeviceError("drill: the device is gone")
        return RequestError("drill: this request fails") if holds(options.fail_on) else None

    return fails
