"""Static against continuous batching, from idle to overload, on the real model.

    .venv/bin/python ops/bench/static_against_fair.py --trace azure_llm_2023_conv.csv         about 25 minutes
    .venv/bin/python ops/bench/static_against_fair.py --trace FILE --arms static,dynamic,fixed-chunks,fair
    .venv/bin/python ops/bench/static_against_fair.py --trace FILE --rounds 1 --seconds 15 --rates 0.5,1,2

Azure's conversation lengths, Poisson arrivals. The arms are one service with several policies: ``static`` (a
batch of --batch requests, the next one when all of it has ended), ``dynamic`` (such a batch begins after 50
ms, full or not), ``fixed-chunks`` (continuous, first come first served) and ``fair`` (continuous, as by
default). A round is a turn of each arm, which starts it anew and measures all rates with ``headway bench``;
rounds have arrivals of their own, the same for all arms, and begin with another arm each. Lengths are the
trace's, all so much shorter that all but one in a hundred fit the model's context of 2,048.

The peak of static batching is the rate at which it has the most goodput (medians of the rounds; of equals
the lowest): with more it only gets worse. There all arms are compared with it, by medians: goodput, and the
P99 of the time to first token. Ends with 1 if ``fair`` has not 3 times the goodput and a fifth of the P99
there, with 2 if nothing can be concluded: the client was the bottleneck at some rate, or the peak lies at
the first or last rate, so that the true one may lie where nothing was measured.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from reader_service import Service, free_port

from headway.services.arrivals import fitting_scale, read_trace
from headway.services.bench.comparison import Arm, Comparison, compare, read_arms
from headway.services.bench.comparison_page import comparison_page
from headway.services.bench.comparison_table import comparison_table
from headway.services.bench.option_values import parse_numbers
from headway.services.errors import UsageError

MODEL: Final = "smollm2-135m"
CONTEXT_TOKENS: Final = 2048
POLICIES: Final = ("static", "dynamic", "fixed-chunks", "fair")
"""In the order of the report; all are compared with the first."""
BATCHED: Final = ("static", "dynamic")
"""Those whose batches have a size of their own."""
JUDGED: Final = ("static", "fair")
"""Whose ratios have goals."""
GOODPUT: Final = ("goodput_per_second",)
TTFT_P99: Final = ("ttft_seconds", "p99")
GOALS: Final = {"goodput": 3.0, "ttft_p99": 5.0}
MEASURED_CODES: Final = (0, 4)
"""Of ``headway bench``: measured, and measured with a client that was the bottleneck: the report says so."""


def turn(arm: str, number: int, file: Path, options: argparse.Namespace) -> None:
    """One arm in one round: all rates, into a file. Exits with the command's own words where it failed."""
    policy = ["--policy", arm]
    if arm in BATCHED:
        policy += ["--max-sequences", f"{options.batch}"]
    with TemporaryDirectory() as name, ExitStack() as stack:
        service = Service(Path(name), stack)
        port = free_port()
        worker = ["--model", MODEL, "--max-model-len", f"{CONTEXT_TOKENS}", "--metrics-port", f"{port}"]
        service.add("worker", "worker", *worker, *policy)
        service.wait_for(port, "/readyz")
        command = [sys.executable, "-m", "headway.services.cli", "bench"]
        command += ["--url", f"http://127.0.0.1:{service.port}", "--worker", f"http://127.0.0.1:{port}"]
        command += ["--trace", str(options.trace), "--length-scale", f"{options.scale:.6f}"]
        command += ["--arrivals", "poisson", "--rate", options.rates, "--seed", f"{number}"]
        command += ["--warmup", f"{options.warmup:g}s", "--duration", f"{options.seconds:g}s"]
        command += ["--drain", f"{options.drain:g}s", "--slo-ttft", options.ttft, "--slo-tpot", options.tpot]
        code = subprocess.run([*command, "--json", str(file)], check=False).returncode
    if code not in MEASURED_CODES:
        raise SystemExit(f"headway bench ended with {code}")


def figures_of(comparison: Comparison) -> dict[str, Any]:
    """Where static batching has its peak, how the arms stand there, and what can be concluded."""
    static, *others = comparison.arms
    peak = peak_of(static)
    ratios = {
        arm.label: {
            "goodput": _ratio(arm.value(peak, GOODPUT), static.value(peak, GOODPUT)),
            "ttft_p99": _ratio(static.value(peak, TTFT_P99), arm.value(peak, TTFT_P99)),
        }
        for arm in others
    }
    goals = {
        name: "held" if (ratios["fair"][name] or 0.0) >= goal else "missed" for name, goal in GOALS.items()
    }
    found = doubts(comparison.arms, peak)
    return {
        "static_against_fair": 2,
        "peak_of_static": peak,
        "ratios_at_peak": ratios,
        "engine_at_peak": {arm.label: engine_of(arm, peak) for arm in comparison.arms},
        "most_goodput": {
            arm.label: max(arm.value(load, GOODPUT) or 0.0 for load in arm.loads) for arm in comparison.arms
        },
        "served_rate": {arm.label: arm.knee.served for arm in comparison.arms},
        "goals": goals,
        "doubts": found,
        "verdict": "open" if found else "held" if set(goals.values()) == {"held"} else "missed",
        "comparison": comparison.figures(),
    }


def doubts(arms: Sequence[Arm], peak: float) -> list[str]:
    """Why nothing can be concluded; empty: it can."""
    found = [
        f"the client was the bottleneck in the turn of {arm.label} in round {number}"
        for arm in arms
        for number, result in enumerate(arm.rounds, start=1)
        if not result["valid"]
    ]
    loads = arms[0].loads
    if peak in (loads[0], loads[-1]):
        side = "higher" if peak == loads[-1] else "lower"
        found.append(
            f"static batching has the most goodput at the {'last' if side == 'higher' else 'first'} rate "
            f"({peak:g}/s), so its peak may lie {side}, where nothing was measured: give {side} --rates"
        )
    return found


def engine_of(arm: Arm, load: float) -> dict[str, float] | None:
    """What the engine did at one rate while it was measured: part of the time that it was busy, requests in a
    step and part of the busy time in steps with prompts (both by time); None without step records.

    ``known_share``: of the measured time, what these figures are of. A worker keeps its last steps only.
    It says why arms are near each other: a batch makes decodes cheaper, hardly prompts.
    """
    steps: list[Sequence[float]] = []
    known = whole = 0.0
    for point in arm.points(load):
        start, end = point["window"]
        for worker in point["workers"]:
            if worker["from_seconds"] is None:
                continue
            since = min(end, max(start, worker["from_seconds"]))
            steps += [step for step in worker["steps"] if since <= step[0] < end]
            known, whole = known + end - since, whole + end - start
    busy = sum(step[1] for step in steps)
    if not busy:
        return None
    return {
        "busy_share": round(min(1.0, busy / known), 3),
        "requests_in_a_step": round(sum(step[1] * step[2] for step in steps) / busy, 2),
        "prompt_share": round(sum(step[1] for step in steps if step[3] > step[2]) / busy, 3),
        "known_share": round(known / whole, 3),
    }


def peak_of(static: Arm) -> float:
    """The rate of most goodput; of equals the lowest."""
    return max(static.loads, key=lambda load: (static.value(load, GOODPUT) or 0.0, -load))


def lines_of(figures: dict[str, Any]) -> list[str]:
    """The outcome in words."""
    goals, served = figures["goals"], figures["served_rate"]
    lines = ["", f"peak of static batching: {figures['peak_of_static']:g} requests/s (the most goodput)"]
    for name, ratios in figures["ratios_at_peak"].items():
        shown = {what: _shown(ratio) for what, ratio in ratios.items()}
        if name in JUDGED:
            shown = {what: f"{told} (goal {GOALS[what]:g}): {goals[what]}" for what, told in shown.items()}
        lines += [
            f"  goodput of {name} ÷ static there: {shown['goodput']}",
            f"  P99 TTFT of static ÷ {name} there: {shown['ttft_p99']}",
        ]
    lines += [_engine(name, of) for name, of in figures["engine_at_peak"].items() if of is not None]
    most = (f"{name} {goodput:.3g}" for name, goodput in figures["most_goodput"].items())
    rates = (f"{name} {'none' if rate is None else f'{rate:g}/s'}" for name, rate in served.items())
    lines += [
        f"most goodput at any rate, requests/s: {', '.join(most)}",
        f"knee, the highest rate with enough within the limits: {', '.join(rates)}",
    ]
    if figures["doubts"]:
        return [*lines, f"NOT CONCLUDED: {'; '.join(figures['doubts'])}"]
    return [*lines, figures["verdict"]]


def _engine(name: str, of: dict[str, float]) -> str:
    part = of["known_share"]
    which = "the time" if part == 1.0 else f"the last {part:.0%} of the time (earlier steps are not kept)"
    return (
        f"  engine of {name} there: busy for {of['busy_share']:.0%} of {which}, "
        f"{of['requests_in_a_step']:g} requests in a step, "
        f"{of['prompt_share']:.0%} of its work in steps with prompts"
    )


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else round(value / base, 3)


def _shown(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def parse_arms(text: str) -> tuple[str, ...]:
    """Policies with commas between them, in the report's order; raises ValueError that says what there is."""
    names = {part.strip() for part in text.split(",")}
    if unknown := names.difference(POLICIES):
        raise ValueError(f"--arms: there is no {', '.join(sorted(unknown))}, only {', '.join(POLICIES)}")
    if not names.issuperset(JUDGED):
        raise ValueError(f"--arms: {' and '.join(JUDGED)} are what is judged, and have to be among them")
    return tuple(name for name in POLICIES if name in names)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ends with exit code 2 and a message for a wrong one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, required=True, help="TIMESTAMP,ContextTokens,GeneratedTokens")
    parser.add_argument("--rates", default="0.4,0.8,1.2,1.6,2.4", help="requests a second, idle to overload")
    parser.add_argument("--arms", default=",".join(JUDGED), help=f"of {', '.join(POLICIES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=35.0, help="measured, of each rate")
    parser.add_argument("--warmup", type=float, default=5.0)
    parser.add_argument("--drain", type=float, default=12.0, help="for the last answers of each rate")
    parser.add_argument(
        "--fitting",
        type=float,
        default=0.99,
        help="share of the lengths that fit the context, others are cut",
    )
    parser.add_argument("--batch", type=int, default=16, help="requests of a static or dynamic batch")
    parser.add_argument("--ttft", default="1s", help="limit of the first token")
    parser.add_argument("--tpot", default="100ms", help="limit of the mean time of each further token")
    parser.add_argument("--output", type=Path, help="a folder for all results and the page")
    options = parser.parse_args(arguments)
    try:
        options.arms = parse_arms(options.arms)
        parse_numbers(options.rates)
        rows = [arrival.lengths for arrival in read_trace(options.trace)]
        options.scale = fitting_scale(rows, CONTEXT_TOKENS, share=options.fitting)
    except (ValueError, UsageError) as error:
        parser.error(str(error))
    if not 0.0 < options.fitting <= 1.0:
        parser.error("--fitting is a share, such as 0.99")
    if min(options.rounds, options.batch) < 1 or min(options.seconds, options.warmup, options.drain) <= 0:
        parser.error("rounds and times are above 0")
    options.output = options.output or Path(f"static-against-fair-{time.strftime('%Y%m%d-%H%M%S')}")
    return options


def main() -> int:
    """Run, write, print; 0 held, 1 a missed goal, 2 nothing concluded."""
    options = parse()
    # Told to end, it ends what it started: the default would leave a service behind that takes the cores.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.output.mkdir(parents=True, exist_ok=True)
    ran: list[tuple[str, Path]] = []
    for number in range(options.rounds):
        shift = number % len(options.arms)
        for arm in options.arms[shift:] + options.arms[:shift]:
            file = options.output / f"{arm}-{number + 1}.json"
            print(f"round {number + 1}, {arm}", file=sys.stderr, flush=True)
            turn(arm, number, file, options)
            ran.append((arm, file))
    # Static first: it is what the others are compared with.
    ran.sort(key=lambda pair: POLICIES.index(pair[0]))
    arms = read_arms([file for _, file in ran], [arm for arm, _ in ran])
    comparison = compare(arms, peak_of(arms[0]))
    figures = figures_of(comparison)
    (options.output / "comparison.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    (options.output / "comparison.html").write_text(comparison_page(comparison), encoding="utf-8")
    print("\n".join([*comparison_table(comparison), *lines_of(figures)]))
    print(f"all of it: {options.output}, the page: {options.output / 'comparison.html'}")
    return {"held": 0, "missed": 1}.get(figures["verdict"], 2)


if __name__ == "__main__":
    sys.exit(main())
