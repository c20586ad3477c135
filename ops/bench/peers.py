"""Our full path against vLLM's CPU build, llama.cpp's server and OpenVINO GenAI: same work, taking turns.

Each peer gets an environment of its own under --peers (installed by this command, versions pinned in
``peer_arms.py``); one that cannot be installed or started is reported and left out. A turn starts one arm
alone, throws a warm-up away, runs all concurrencies and stops it again; a round is a turn of each arm, in an
order that rotates. Started alone, because several of them keep threads awake after their work, and on two
cores whoever measures next would pay for that; how much of the cores each uses when it has nothing to do is
measured at the end of its turn and reported. See docs/benchmarks.md.

    .venv/bin/python ops/bench/peers.py                        about 40 minutes on a quiet machine, and an
                                                               hour more where Celery is installed
    .venv/bin/python ops/bench/peers.py --rounds 1 --add-to report.json     another round, when it is quiet
    .venv/bin/python ops/bench/peers.py --rounds 1 --requests 4 --concurrencies 1,4 --arms headway,openvino

Exit code 1 with --goals when a ratio is below its goal.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peer_arms import (
    ARMS,
    DEFAULT_CONCURRENCIES,
    GOALS,
    PEERS,
    Arm,
    choose_arms,
    choose_concurrencies,
    cores,
)
from peer_client import WrongAnswerError
from peer_figures import Cell, cell_of, kept_rounds, medians, ratio_to_best, table
from peer_process import running
from peer_setup import SetupError, install, weights_for
from peer_work import Work, make_work, template_ids

from headway.engine.checkpoint import open_checkpoint
from headway.engine.interfaces import Tokenizer
from headway.engine.model_source import resolve_model
from headway.services.processor import processor_name

Rounds = dict[str, dict[int, dict[int, Cell]]]
"""Arm to concurrency to round to figures."""


class Prompts:
    """The work of each cell, the same for every arm."""

    def __init__(self, tokenizer: Tokenizer, requests: int) -> None:
        self._encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
        self._around = template_ids(lambda text: tokenizer.render_chat([{"role": "user", "content": text}]))
        self._requests = requests

    def of(self, name: str, count: int | None = None) -> list[Work]:
        """Work that depends on nothing but the name and the count."""
        return make_work(count or self._requests, name, encode=self._encode, around=self._around)


class Bench:
    """All turns of all arms, and the report of those that ended."""

    def __init__(self, arms: Sequence[Arm], source: Path, options: argparse.Namespace) -> None:
        self._options = options
        self._home: Path = options.peers
        self._source = source
        self._prompts = Prompts(open_checkpoint(source).tokenizer(), options.requests)
        self.arms = list(arms)
        self.rounds: Rounds = {arm.name: {} for arm in arms}
        self.left_out: dict[str, str] = {}
        self.idle: dict[str, list[float]] = {}
        self._first_round = 0

    def set_up(self) -> None:
        """Install peers and write models; what cannot be had leaves the arms."""
        for arm in self.arms:
            try:
                if arm.peer is not None:
                    install(PEERS[arm.peer], self._home)
                weights_for(arm.weights, self._source, self._home)
            except SetupError as error:
                self._leave_out(arm, str(error))

    def add_to(self, report: dict[str, Any]) -> None:
        """Go on where a report of the same work on this machine ended. Raises ValueError if it is another."""
        self.rounds |= kept_rounds(report, machine(self._options))
        self.idle = report["idle_cores"]
        numbers = [n for cells in self.rounds.values() for ran in cells.values() for n in ran]
        self._first_round = max(numbers, default=-1) + 1

    def run(self) -> None:
        """Every round, a turn of every arm that still runs."""
        for number in range(self._first_round, self._first_round + self._options.rounds):
            shift = number % max(1, len(self.arms))
            for arm in self.arms[shift:] + self.arms[:shift]:
                if arm.name not in self.left_out:
                    self._turn(arm, number)
                    self.write()

    def _turn(self, arm: Arm, number: int) -> None:
        weights = weights_for(arm.weights, self._source, self._home)
        try:
            with running(arm, self._home, weights) as server:
                server.wait_ready(self._prompts.of("first", 1)[0], self._options.start_seconds)
                most = max(self._options.concurrencies)
                for name, count in warm_ups(arm, min(most, self._options.requests)):
                    server.run(self._prompts.of(f"{name} {number}", count), count)
                for concurrency in self._options.concurrencies:
                    own = time.process_time()
                    answers = server.run(self._prompts.of(f"{number} {concurrency}"), concurrency)
                    cell = cell_of(answers) | {"client_cpu_seconds": time.process_time() - own}
                    self.rounds[arm.name].setdefault(concurrency, {})[number] = cell
                    shown = f"{cell['tokens_per_second']:8.1f} tokens/s"
                    print(f"round {number + 1}, {arm.name:16} at {concurrency:2}: {shown}", flush=True)
                self.idle.setdefault(arm.name, []).append(round(server.idle_cores(), 3))
        except* (SetupError, WrongAnswerError, OSError, EOFError, ValueError) as errors:
            self._leave_out(arm, "; ".join(dict.fromkeys(messages(errors))))

    def _leave_out(self, arm: Arm, reason: str) -> None:
        self.left_out[arm.name] = reason
        print(f"{arm.name} is left out: {reason}", file=sys.stderr, flush=True)

    def report(self) -> dict[str, Any]:
        """All figures as values of JSON."""
        ran = {c for cells in self.rounds.values() for c in cells}
        concurrencies = sorted(ran | set(self._options.concurrencies))
        return {
            "machine": machine(self._options),
            "peers": {name: peer.requirement for name, peer in PEERS.items()},
            "medians": {str(c): self._medians(c) for c in concurrencies},
            "ratios": {str(c): self._ratios(c) for c in concurrencies},
            "idle_cores": self.idle,
            "left_out": self.left_out,
            "rounds": self.rounds,
        }

    def write(self) -> None:
        """Keep what is known so far."""
        self._options.output.write_text(json.dumps(self.report(), indent=2) + "\n")

    def _medians(self, concurrency: int) -> dict[str, Cell]:
        ran = {name: list(cells.get(concurrency, {}).values()) for name, cells in self.rounds.items()}
        return {name: medians(cells) for name, cells in ran.items() if cells}

    def _ratios(self, concurrency: int) -> list[dict[str, Any]]:
        """Ours in few bits against the best of all peers, ours in bfloat16 against the best in bfloat16."""
        at = {name: cells.get(concurrency, {}) for name, cells in self.rounds.items()}
        known = [arm for arm in ARMS if arm.name in self.rounds]
        found: list[dict[str, Any]] = []
        for arm in known:
            if arm.peer is not None:
                continue
            rivals = [a for a in known if a.peer is not None and (a.is_bf16 or not arm.is_bf16)]
            ratio = ratio_to_best(at, arm.name, {rival.name: at[rival.name] for rival in rivals})
            if ratio is not None:
                goal = GOALS[arm.is_bf16].get(concurrency)
                verdict = None if goal is None else "met" if ratio.ratio >= goal else "missed"
                found.append({**asdict(ratio), "goal": goal, "verdict": verdict})
        return found


def warm_ups(arm: Arm, most: int) -> list[tuple[str, int]]:
    """What is run and thrown away, with its number of requests at once: the largest batch, then one alone."""
    alone = ("warm-up alone", 1)
    return [alone] if arm.is_serial else [("warm-up", most), alone]


def messages(errors: BaseExceptionGroup[Exception]) -> list[str]:
    """What each error says, those of groups inside groups too."""
    found: list[str] = []
    for error in errors.exceptions:
        is_group = isinstance(error, BaseExceptionGroup)
        found += messages(error) if is_group else [f"{type(error).__name__}: {error}"]
    return found


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """What it ran on, and how."""
    return {
        "cpu": processor_name(),
        "cores": cores(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "python": platform.python_version(),
        "model": options.model,
        "requests": options.requests,
        "rounds_of_last_call": options.rounds,
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ends with exit code 2 and a message for a wrong one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=Path, default=Path.home() / ".cache/headway/peers", metavar="DIR")
    parser.add_argument(
        "--arms",
        help=f"names of arms or peers: headway, {', '.join(PEERS)}, or of "
        f"{', '.join(arm.name for arm in ARMS)}; default: all but variants, and transformers' two where "
        "they are installed",
    )
    parser.add_argument("--concurrencies", default=",".join(map(str, DEFAULT_CONCURRENCIES)))
    parser.add_argument("--requests", type=int, default=64, help="of each cell")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="smollm2-135m", help="a built-in model or a .gguf file")
    parser.add_argument("--start-seconds", type=float, default=600.0, help="vLLM compiles its model first")
    parser.add_argument("--output", type=Path, help="default: report.json in the peers' folder")
    parser.add_argument(
        "--add-to", type=Path, metavar="FILE", help="a report: its rounds count, and it is written on"
    )
    parser.add_argument("--goals", action="store_true", help="exit code 1 when a goal is missed")
    options = parser.parse_args(arguments)
    try:
        options.arms = choose_arms(options.arms, options.peers)
        options.concurrencies = choose_concurrencies(options.concurrencies)
    except ValueError as error:
        parser.error(str(error))
    if options.requests < 1 or options.rounds < 1:
        parser.error("--requests and --rounds are 1 or more")
    options.output = options.output or options.add_to or options.peers / "report.json"
    return options


def main() -> int:
    """Set up, take all turns, print the table."""
    options = parse()
    # Told to end, it ends what it started: the default would leave a service behind that takes the cores.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.peers.mkdir(parents=True, exist_ok=True)
    bench = Bench(options.arms, resolve_model(options.model).path, options)
    if options.add_to is not None:
        try:
            bench.add_to(json.loads(options.add_to.read_text()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"nothing can be added to {options.add_to}: {error}", file=sys.stderr)
            return 2
    bench.set_up()
    bench.run()
    report = bench.report()
    bench.write()
    print(", ".join(f"{name} {value}" for name, value in report["machine"].items()))
    print("\n".join(table(report)))
    print(f"\ncores busy when idle: {bench.idle}\nall figures: {options.output}")
    missed = any(ratio["verdict"] == "missed" for cell in report["ratios"].values() for ratio in cell)
    return 1 if options.goals and missed else 0


if __name__ == "__main__":
    sys.exit(main())
