"""Writes the three dashboards, ``ops/grafana/dashboards/*.json``, from the files beside this one.

python ops/grafana/dashboards.py            write them
python ops/grafana/dashboards.py --check    exit 1 if they are not what these files say
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from engine import ENGINE
from fleet import FLEET
from panels import Dashboard, document
from tenants import TENANTS

FOLDER: Final = Path(__file__).parent / "dashboards"
DASHBOARDS: Final = (FLEET, TENANTS, ENGINE)


def text_of(dashboard: Dashboard) -> str:
    """The file's contents."""
    return json.dumps(document(dashboard, DASHBOARDS), indent=1) + "\n"


def main() -> int:
    """Write or check."""
    stale = []
    for dashboard in DASHBOARDS:
        path = FOLDER / f"{dashboard.uid.removeprefix('headway-')}.json"
        text = text_of(dashboard)
        if not path.exists() or path.read_text() != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text)
    print(f"{'stale' if '--check' in sys.argv else 'written'}: {', '.join(stale) or 'none'}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
