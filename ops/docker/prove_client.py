"""The producer and reader of prove.sh; Python's standard library only, like any client in a plain container.

post URL TOKENS
    posts a greedy job of that many tokens, prints its id
follow URL JOB TEXT_FILE
    reads it to its end, checks that every token came exactly once, writes the text, prints figures
ask URL TOKENS TEXT_FILE [--at N --run COMMAND]
    both at once; runs COMMAND when N tokens are there
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROMPT = "Explain to a child how a message queue works. Use a story about a post office."
SILENCE_SECONDS = 90.0
"""Longest wait between two lines; a healthy gateway sends a comment every few seconds."""
LIMIT_SECONDS = 300.0


@dataclass
class Answer:
    """What has been read so far."""

    text: str = ""
    tokens: int = 0
    last_id: str = ""
    reason: str = ""
    connections: int = 0
    began: float = field(default_factory=time.monotonic)
    first: float = 0.0
    last: float = 0.0
    longest_pause: float = 0.0

    def take(self, name: str, cursor: str, content: dict[str, Any]) -> None:
        """Add one event; stop the program at a gap, a repeat or an error."""
        if name == "error":
            sys.exit(f"the stream ended with {content}")
        if name == "end":
            self.reason = str(content["reason"])
            self.text += "".join(choice["tail"] for choice in content["choices"])
            return
        now = time.monotonic()
        self.longest_pause = max(self.longest_pause, now - (self.last or now))
        self.first, self.last = self.first or now, now
        self.tokens += len(content["token_ids"])
        if cursor != f"{self.tokens}-0":
            sys.exit(f"after {self.tokens} tokens the event's id is {cursor}: a gap or a repeat")
        self.last_id = cursor
        self.text += str(content["text"])

    def figures(self) -> str:
        """One line of what a reader noticed."""
        rate = (self.tokens - 1) / max(self.last - self.first, 1e-9)
        return (
            f"{self.tokens} tokens, reason {self.reason}, first after {self.first - self.began:.2f} s, "
            f"{rate:.1f} tokens/s, longest pause {self.longest_pause:.2f} s, {self.connections} connection(s)"
        )


def main() -> int:
    """Run one of the three verbs."""
    options = parse_arguments()
    if options.verb == "post":
        print(post(options.url, options.tokens))
        return 0
    answer = Answer()
    if options.verb == "ask":
        follow(answer, options.url, post(options.url, options.tokens), options.at, options.run)
    else:
        follow(answer, options.url, options.job)
    options.text_file.write_text(answer.text, encoding="utf-8")
    print(answer.figures())
    return 0


def parse_arguments() -> argparse.Namespace:
    """The verb and its arguments; wrong usage ends the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    posting, following, asking = (verbs.add_parser(name) for name in ("post", "follow", "ask"))
    for verb in (posting, following, asking):
        verb.add_argument("url")
    following.add_argument("job")
    for verb in (posting, asking):
        verb.add_argument("tokens", type=int)
    for verb in (following, asking):
        verb.add_argument("text_file", type=Path)
    asking.add_argument("--at", type=int, default=0)
    asking.add_argument("--run", default="")
    return parser.parse_args()


def post(url: str, tokens: int) -> str:
    """Post a job that draws nothing at random and ignores the end of text, so that two runs must agree."""
    body = {
        "model": json.load(urllib.request.urlopen(f"{url}/v1/models", timeout=10))["data"][0]["id"],
        "messages": [{"role": "user", "content": PROMPT}],
        "sampling": {"temperature": 0, "max_tokens": tokens, "ignore_eos": True},
        "on_disconnect": "detach",
    }
    request = urllib.request.Request(
        f"{url}/v1/jobs", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        return str(json.load(urllib.request.urlopen(request, timeout=10))["id"])
    except urllib.error.HTTPError as error:
        sys.exit(f"POST /v1/jobs: {error.code} {error.read().decode()}")


def follow(answer: Answer, url: str, job: str, at: int = 0, command: str = "") -> None:
    """Read to the terminal event; a cut connection is taken up again at the last id, as browsers do."""
    while not answer.reason:
        if time.monotonic() - answer.began > LIMIT_SECONDS:
            sys.exit(f"no end after {LIMIT_SECONDS:.0f} s: {answer.figures()}")
        answer.connections += 1
        try:
            for name, cursor, content in events(f"{url}/v1/jobs/{job}/stream", answer.last_id):
                answer.take(name, cursor, content)
                if command and answer.tokens >= at:
                    subprocess.Popen(command, shell=True)
                    command = ""
        except OSError as error:
            print(f"reconnecting: {error}", file=sys.stderr)
            time.sleep(0.5)


def events(url: str, last_id: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, id and content of each server-sent event."""
    request = urllib.request.Request(url, headers={"last-event-id": last_id} if last_id else {})
    with urllib.request.urlopen(request, timeout=SILENCE_SECONDS) as response:
        name, cursor, content = "", "", ""
        for raw in response:
            line = raw.decode().rstrip("\n")
            kind, _, value = line.partition(": ")
            if kind == "event":
                name = value
            elif kind == "id":
                cursor = value
            elif kind == "data":
                content = value
            elif not line and content:
                yield name, cursor, json.loads(content)
                name, cursor, content = "", "", ""


if __name__ == "__main__":
    sys.exit(main())
