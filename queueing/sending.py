"""How our connections send, where redis-py's asyncio ones do worse.

- A call that emits a token for each of 32 jobs has 290 arguments. Packing them takes 10 µs per token in
  Python and 1 µs in C, on the thread that shares the interpreter with the engine.
- redis-py sends inside ``asyncio.wait_for``. In Python 3.11 that makes a task of every send, and it swallows
  a cancel that comes just as the send is done (CPython issue 86296): whoever cancelled waits for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any, cast

from redis import exceptions as redis_errors


def sending_well(connection_class: Any) -> Any:
    """The same kind of connection with our way to send; it packs in C unless hiredis is missing."""

    class Sending(connection_class):  # type: ignore[misc]  # one of several kinds of redis-py, known at run time
        async def send_packed_command(
            self, command: bytes | str | Iterable[bytes], check_health: bool = True
        ) -> None:
            """Write all of it, or close the connection: half a command cannot be taken back."""
            if not self.is_connected:
                await self.connect_check_health(check_health=False)
            if check_health:
                await self.check_health()
            try:
                async with asyncio.timeout(self.socket_timeout):
                    await self._send_packed_command(_lines(command))
            except TimeoutError:
                await self.disconnect(nowait=True)
                raise redis_errors.TimeoutError("Timeout writing to socket") from None
            except OSError as error:
                await self.disconnect(nowait=True)
                raise redis_errors.ConnectionError(f"Error while writing to socket. {error}.") from error
            except BaseException:
                await self.disconnect(nowait=True)
                raise

    return Sending if find_spec("hiredis") is None else _packing_in_c(Sending)


def _packing_in_c(connection_class: Any) -> Any:
    import hiredis

    pack: Callable[[tuple[Any, ...]], bytes] = cast(
        "Any", hiredis
    ).pack_command  # its stubs know one word only

    class Packing(connection_class):  # type: ignore[misc]  # see ``sending_well``
        def pack_command(self, *words: Any) -> list[bytes]:
            """One command; its name may be two words, as redis-py has it."""
            return [pack((*str(words[0]).split(), *words[1:]))]

    return Packing


def _lines(command: bytes | str | Iterable[bytes]) -> Iterable[bytes]:
    if isinstance(command, str):
        command = command.encode()
    return (command,) if isinstance(command, bytes) else command
