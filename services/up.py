"""What ``headway up`` does before and around its supervisor: checks, header, exit code."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import socket
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from headway import __version__
from headway.services.connection import check_url
from headway.services.embedded import EmbeddedOptions, EmbeddedServer, find_server_binary
from headway.services.errors import StartError
from headway.services.journal import Journal
from headway.services.listener import open_listener
from headway.services.memory import read_memory
from headway.services.preflight import check_installed, check_model, share_out
from headway.services.settings import UpSettings, default_state_dir, shown
from headway.services.state import StateDir
from headway.services.stop_signals import die_of
from headway.services.supervisor import Supervisor
from headway.services.terminal import Terminal, short_path
from headway.services.welcome import welcome


def run_up(settings: UpSettings) -> int:
    """Run until stopped; the exit code. Raises ServiceError for everything expected."""
    state = StateDir(settings.state_dir)
    state.prepare()
    state.hold()
    check_installed(settings.model)
    check_model(settings.model)
    if settings.tenants is not None:
        # Imported here: most have no such file, and what checks it takes a quarter of a second to load.
        from headway.services.tenants_file import check_tenants_file

        # Absolute, since the gateway is another process; checked here, where somebody reads the message.
        file = settings.tenants.absolute()
        check_tenants_file(file)
        settings = replace(settings, tenants=file)
    settings = share_out(settings, read_memory(), len(os.sched_getaffinity(0)))
    settings = _with_batch(settings, state)
    server = _embedded(settings, state)
    listener = open_listener(settings.host, settings.port)
    Journal(state.logs / "up.log").write("up", version=__version__, pid=os.getpid(), settings=shown(settings))
    code = asyncio.run(_supervise(settings, state, listener, server))
    if code < 0:
        die_of(signal.Signals(-code))
    return code


def _with_batch(settings: UpSettings, state: StateDir) -> UpSettings:
    """Where files lie, and whether the batch service runs; raises StartError when it cannot."""
    is_installed = find_spec("celery") is not None
    if settings.has_batch and not is_installed:
        raise StartError("celery is not installed", hint="pip install 'headway[batch]'")
    has_batch = is_installed if settings.has_batch is None else settings.has_batch
    files = settings.files or str(state.root / "files")
    # Absolute, since others start in another folder.
    files = files if "://" in files else str(Path(files).expanduser().absolute())
    return replace(settings, files=files, has_batch=has_batch)


def _embedded(settings: UpSettings, state: StateDir) -> EmbeddedServer | None:
    """The embedded server to be, with what can be checked before it starts; None with an external one."""
    if settings.redis_url is not None:
        check_url(settings.redis_url)
        return None
    find_server_binary()
    return EmbeddedServer(state, EmbeddedOptions(settings.redis_port, settings.redis_memory_bytes))


async def _supervise(
    settings: UpSettings, state: StateDir, listener: socket.socket, server: EmbeddedServer | None
) -> int:
    terminal = Terminal()
    supervisor = Supervisor(settings, state, listener, server, terminal)
    _header(terminal, settings, state)

    def on_ready() -> None:
        fleet = supervisor.fleet
        welcome(
            terminal,
            fleet.url,
            fleet.model,
            state.logs,
            command=_command(),
            options=_options(state),
            has_batch=fleet.batch is not None,
        )

    return await supervisor.run(on_ready)


def _header(terminal: Terminal, settings: UpSettings, state: StateDir) -> None:
    """Say which settings are in effect."""
    terminal.line(terminal.paint(f"Headway {__version__}", "bold"))
    workers = f"{settings.workers} worker{'s' if settings.workers > 1 else ''}"
    dtype = "" if settings.dtype == "auto" else f"{settings.dtype}, "
    terminal.line(f"  model     {settings.model}, {dtype}{workers}")
    terminal.line(f"  state     {short_path(state.root)}")
    if settings.redis_url is None and settings.redis_port is not None:
        terminal.line(f"  queue     redis://127.0.0.1:{settings.redis_port}/0 for other producers")
    terminal.line()


def _command() -> str:
    """What to type for ``headway`` here: inside a .venv it is often not on PATH."""
    on_path = shutil.which("headway")
    here = Path(sys.executable).with_name("headway")
    if (on_path is not None and Path(on_path).resolve() == here.resolve()) or not here.exists():
        return "headway"
    return str(here.relative_to(Path.cwd())) if here.is_relative_to(Path.cwd()) else str(here)


def _options(state: StateDir) -> str:
    """The option by which other commands find this state dir; none for the default one."""
    is_default = state.root == Path(os.path.abspath(default_state_dir()))
    return "" if is_default else f" --state-dir {shlex.quote(str(state.root))}"
