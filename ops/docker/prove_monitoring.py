"""What a running Prometheus sees of the stack, for prove.sh; Python's standard library only.

prove_monitoring.py URL
    waits for all jobs' targets, checks that every rule of ops/prometheus is loaded and evaluates, that no
    alert fires but those for what the proof has done, and runs the query of every panel of
    ops/grafana/dashboards as Grafana would
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OPS = Path(__file__).resolve().parents[1]
JOBS = frozenset({"headway-gateway", "headway-worker", "headway-batch"})
TRUE_ALERTS = frozenset({"HeadwayWorkersLost"})
"""A worker was killed some minutes ago: fires where Prometheus had looked at the one before it."""
LIMIT_SECONDS = 120.0
RULE = re.compile(r"^ *- (?:alert|record): (\S+)$", re.MULTILINE)
VARIABLES = {"$__rate_interval": "1m", "$__interval": "15s", "$__range": "15m", "$model": ".*"}
"""What Grafana puts in place of them, with "All" chosen."""


def main() -> int:
    """Print what was found; stops with a reason where something is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    url = parser.parse_args().url
    began = time.monotonic()
    wait_for_targets(url)
    print(f"   targets up after                 {time.monotonic() - began:.0f} s: {', '.join(sorted(JOBS))}")
    names = rules(url)
    print(f"   rules loaded and evaluated       {len(names)}, no alert fires that should not")
    for path in sorted((OPS / "grafana/dashboards").glob("*.json")):
        report(url, path)
    return 0


def wait_for_targets(url: str) -> None:
    """Return when every job has a target and all of them are up, scraped at least three times."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        found = ask(url, "up")
        down = [each["metric"] for each in found if each["value"][1] != "1"]
        scrapes = ask(url, "min(count_over_time(up[5m]))")
        if (
            {each["metric"]["job"] for each in found} >= JOBS
            and not down
            and float(scrapes[0]["value"][1]) >= 3
        ):
            return
        if time.monotonic() > deadline:
            sys.exit(f"not all targets are up after {LIMIT_SECONDS:.0f} s: {found}")
        time.sleep(2.0)


def rules(url: str) -> list[str]:
    """The names of all rules, each loaded, evaluated without error, and no alert firing that should not."""
    wanted = [
        name
        for file in ("recording.yml", "alerts.yml")
        for name in RULE.findall((OPS / "prometheus" / file).read_text(encoding="utf-8"))
    ]
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        groups = get(f"{url}/api/v1/rules")["groups"]
        loaded = [rule for group in groups for rule in group["rules"]]
        if sorted(rule["name"] for rule in loaded) != sorted(wanted):
            sys.exit(f"not the rules of the files: {sorted(rule['name'] for rule in loaded)}")
        ill = [
            (rule["name"], rule["health"], rule.get("lastError", ""))
            for rule in loaded
            if rule["health"] != "ok"
        ]
        if not ill:
            break
        if time.monotonic() > deadline:
            sys.exit(f"rules that do not evaluate: {ill}")
        time.sleep(2.0)
    firing = {rule["name"] for rule in loaded if rule.get("state") == "firing"}
    if firing - TRUE_ALERTS:
        sys.exit(f"alerts fire on a healthy stack: {sorted(firing - TRUE_ALERTS)}")
    return wanted


def report(url: str, path: Path) -> None:
    """Run every query of a dashboard; an error stops the program, a panel without values is named."""
    told = 0
    empty: list[str] = []
    for title, expressions in queries(path):
        answers = [ask(url, expression) for expression in expressions]
        told += 1
        if not any(answers):
            empty.append(title)
    silent = f"; nothing to show yet: {', '.join(empty)}" if empty else ""
    print(f"   {path.name:32s} {told} panels, {told - len(empty)} with values{silent}")
    if len(empty) > told / 2:
        sys.exit(f"most panels of {path.name} show nothing")


def queries(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Title and expressions of each panel, with Grafana's variables filled in."""
    for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
        expressions = [target["expr"] for target in panel.get("targets", ())]
        for variable, value in VARIABLES.items():
            expressions = [each.replace(variable, value) for each in expressions]
        left = [each for each in expressions if "$" in each]
        if left:
            sys.exit(f"{path.name}, {panel['title']}: a variable that is not known here: {left[0]}")
        if expressions:
            yield panel["title"], expressions


def ask(url: str, expression: str) -> list[dict[str, Any]]:
    """An instant query's series."""
    found = get(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")["result"]
    series: list[dict[str, Any]] = found
    return series


def get(url: str) -> dict[str, Any]:
    """``data`` of an answer; what Prometheus refuses stops the program."""
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            answer: dict[str, Any] = json.load(response)["data"]
    except urllib.error.HTTPError as error:
        sys.exit(f"{url}: {error.code} {error.read().decode()}")
    except urllib.error.URLError as error:
        sys.exit(f"{url}: {error.reason}")
    return answer


if __name__ == "__main__":
    sys.exit(main())
