"""Static against continuous batching, from idle to overload, on the real model.

    .venv/bin/python ops/bench/static_against_fair.py --trace azure_llm_2023_conv.csv         about 25 minutes
    .venv/bin/python ops/bench/static_against_fair.py --trace FILE --rounds 1 --seconds 15 --rates 0.5,1,2

Azure's conversation lengths, Poisson arrivals. The arms are one service with two policies: ``static`` (a
batch of --batch requests, the next one when all of it has ended) and ``fair`` (continuous). A round is a
turn of each arm, which starts it anew and measures all rates with ``headway bench``; rounds have arrivals
of their own, the same for both arms, and begin with another arm each. Lengths are the trace's, all so much
shorter that all but one in a hundred fit the model's context of 2,048.

The knee of static batching is the rate at which it has the most goodput (medians of the rounds; of equals
the lowest): with more it only gets worse. There are compared, by medians: goodput, and the P99 of the time
to first token. Ends with 1 if continuous batching has not 3 times the goodput and a fifth of the P99 there.
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
ARMS: Final = ("static", "fair")
GOODPUT: Final = ("goodput_per_second",)
TTFT_P99: Final = ("ttft_seconds", "p99")
GOALS: Final = {"goodput": 3.0, "ttft_p99": 5.0}
MEASURED_CODES: Final = (0, 4)
"""Of ``headway bench``: measured, and measured with a client that was the bottleneck: the report says so."""


def turn(arm: str, number: int, file: Path, options: argparse.Namespace) -> None:
    """One arm in one round: all rates, into a file. Exits with the command's own words where it failed."""
    policy = ["--policy", arm]
    if arm == "static":
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
    """Where static batching has its knee, and how the arms stand there."""
    by_label = {arm.label: arm for arm in comparison.arms}
    static, fair = (by_label[name] for name in ARMS)
    knee = knee_of(static)
    ratios = {
        "goodput": _ratio(fair.value(knee, GOODPUT), static.value(knee, GOODPUT)),
        "ttft_p99": _ratio(static.value(knee, TTFT_P99), fair.value(knee, TTFT_P99)),
    }
    return {
        "static_against_fair": 1,
        "knee_of_static": knee,
        "knee_is_inside": knee < max(static.loads),
        "ratios_at_knee": ratios,
        "engine_at_knee": {name: engine_of(arm, knee) for name, arm in by_label.items()},
        "most_goodput": {
            name: max(arm.value(load, GOODPUT) or 0.0 for load in arm.loads) for name, arm in by_label.items()
        },
        "served_rate": {name: arm.knee.served for name, arm in by_label.items()},
        "verdict": {
            name: "held" if (ratios[name] or 0.0) >= goal else "missed" for name, goal in GOALS.items()
        },
        "comparison": comparison.figures(),
    }


def engine_of(arm: Arm, load: float) -> dict[str, float] | None:
    """What the engine did at one rate: part of the time that it was busy, requests in a step and part of the
    busy time in steps with prompts (both by time); None without step records.

    It says why arms are near each other: a batch makes decodes cheaper, hardly prompts.
    """
    records = [worker["steps"] for point in arm.points(load) for worker in point["workers"]]
    steps = [step for record in records for step in record]
    busy = sum(seconds for _, seconds, *_ in steps)
    if not busy:
        return None
    span = sum(record[-1][0] + record[-1][1] - record[0][0] for record in records if record)
    return {
        "busy_share": round(min(1.0, busy / max(span, 1e-9)), 3),
        "requests_in_a_step": round(sum(step[1] * step[2] for step in steps) / busy, 2),
        "prompt_share": round(sum(step[1] for step in steps if step[3] > step[2]) / busy, 3),
    }


def knee_of(static: Arm) -> float:
    """The rate of most goodput; of equals the lowest."""
    return max(static.loads, key=lambda load: (static.value(load, GOODPUT) or 0.0, -load))


def lines_of(figures: dict[str, Any]) -> list[str]:
    """The outcome in words."""
    ratios, verdict, most = figures["ratios_at_knee"], figures["verdict"], figures["most_goodput"]
    served = figures["served_rate"]
    beyond = ["the knee may lie higher, where nothing was measured: give higher --rates"]
    return [
        "",
        *([] if figures["knee_is_inside"] else beyond),
        f"knee of static batching: {figures['knee_of_static']:g} requests/s, where it has the most goodput",
        f"  goodput of continuous ÷ static there: {_shown(ratios['goodput'])} "
        f"(goal {GOALS['goodput']:g}): {verdict['goodput']}",
        f"  P99 TTFT of static ÷ continuous there: {_shown(ratios['ttft_p99'])} "
        f"(goal {GOALS['ttft_p99']:g}): {verdict['ttft_p99']}",
        *(
            f"  engine of {name} there: busy for {of['busy_share']:.0%} of the time, "
            f"{of['requests_in_a_step']:g} requests in a step, "
            f"{of['prompt_share']:.0%} of its work in steps with prompts"
            for name, of in figures["engine_at_knee"].items()
            if of is not None
        ),
        f"most goodput at any rate: static {most['static']:.3g}, continuous {most['fair']:.3g} requests/s",
        "highest rate with enough within the limits: "
        + ", ".join(f"{name} {'none' if rate is None else f'{rate:g}/s'}" for name, rate in served.items()),
    ]


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else round(value / base, 3)


def _shown(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ends with exit code 2 and a message for a wrong one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, required=True, help="TIMESTAMP,ContextTokens,GeneratedTokens")
    parser.add_argument("--rates", default="0.4,0.8,1.2,1.6,2.4", help="requests a second, idle to overload")
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
    parser.add_argument("--batch", type=int, default=16, help="requests of a static batch")
    parser.add_argument("--ttft", default="1s", help="limit of the first token")
    parser.add_argument("--tpot", default="100ms", help="limit of the mean time of each further token")
    parser.add_argument("--output", type=Path, help="a folder for all results and the page")
    options = parser.parse_args(arguments)
    try:
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
    """Run, write, print; 1 for a missed goal."""
    options = parse()
    # Told to end, it ends what it started: the default would leave a service behind that takes the cores.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.output.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    labels: list[str] = []
    for number in range(options.rounds):
        for arm in ARMS if number % 2 == 0 else ARMS[::-1]:
            file = options.output / f"{arm}-{number + 1}.json"
            print(f"round {number + 1}, {arm}", file=sys.stderr, flush=True)
            turn(arm, number, file, options)
            files.append(file)
            labels.append(arm)
    # Static first: it is what the other is compared with.
    pairs = sorted(zip(files, labels, strict=True), key=lambda pair: ARMS.index(pair[1]))
    arms = read_arms([file for file, _ in pairs], [label for _, label in pairs])
    comparison = compare(arms, knee_of(arms[0]))
    figures = figures_of(comparison)
    (options.output / "comparison.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    (options.output / "comparison.html").write_text(comparison_page(comparison), encoding="utf-8")
    print("\n".join([*comparison_table(comparison), *lines_of(figures)]))
    print(f"all of it: {options.output}, the page: {options.output / 'comparison.html'}")
    return 0 if set(figures["verdict"].values()) == {"held"} else 1


if __name__ == "__main__":
    sys.exit(main())
