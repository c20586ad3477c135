"""``python -m tests.chaos``: a storm over real processes, a server and a network, and what came of it.

Everything is drawn from the seed; a failed run prints it with the schedule of its faults. The exit code is 1
when anything is wrong. ``--schedule`` takes the faults from an earlier run's report instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import fields
from pathlib import Path

from tests.chaos.run import Options, run
from tests.chaos.schedule import Fault


def main() -> int:
    """Run, print, and say whether all was well."""
    parser = argparse.ArgumentParser(
        "tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    defaults = Options()
    for option in fields(Options):
        default = getattr(defaults, option.name)
        parser.add_argument(f"--{option.name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--report", type=Path, help="write everything as JSON to this file")
    parser.add_argument("--schedule", type=Path, help="a report whose faults to repeat")
    parser.add_argument("--logs", type=Path, help="keep the processes' logs in this folder")
    given = vars(parser.parse_args())
    report_path, schedule_path, logs = given.pop("report"), given.pop("schedule"), given.pop("logs")
    faults = None
    if schedule_path is not None:
        faults = [Fault.read(each) for each in json.loads(schedule_path.read_text())["schedule"]]
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
    report = asyncio.run(run(Options(**given), faults, logs))
    print(report)
    if report_path is not None:
        report_path.write_text(json.dumps(report.as_json(), indent=1))
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
