"""A batch over HTTP for prove.sh; Python's standard library only.

prove_batch.py URL LINES [--at N --run COMMAND]
    uploads a file of that many requests, posts a batch, runs COMMAND when N of them are done, and at its end
    checks that the output file holds every custom_id exactly once
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from typing import Any

TOKENS = 16
LIMIT_SECONDS = 300.0
BOUNDARY = "headway-prove"
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


def main() -> int:
    """Post, follow, check; prints one line of figures."""
    options = parse_arguments()
    began = time.monotonic()
    ids = [f"line-{number}" for number in range(options.lines)]
    batch = call(
        f"{options.url}/v1/batches",
        {
            "input_file_id": upload(options.url, input_file(options.url, ids)),
            "endpoint": "/v1/chat/completions",
            "completion_window": "1h",
        },
    )
    batch, seen = follow(options.url, batch, options.at, options.run)
    if batch["status"] != "completed":
        sys.exit(f"the batch ended as {batch}")
    check(ids, fetch(f"{options.url}/v1/files/{batch['output_file_id']}/content").decode())
    seconds = time.monotonic() - began
    print(
        f"{options.lines} lines of {TOKENS} tokens in {seconds:.1f} s ({options.lines / seconds:.1f}/s);",
        f"disturbed at {seen} lines" if options.run else "undisturbed",
    )
    return 0


def parse_arguments() -> argparse.Namespace:
    """Wrong usage ends the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("lines", type=int)
    parser.add_argument("--at", type=int, default=0)
    parser.add_argument("--run", default="")
    return parser.parse_args()


def input_file(url: str, ids: list[str]) -> str:
    """One request a line, each with a prompt of its own."""
    model = json.loads(fetch(f"{url}/v1/models"))["data"][0]["id"]
    lines = (
        {
            "custom_id": each,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": model,
                "messages": [{"role": "user", "content": f"Say something about {each}."}],
                "max_tokens": TOKENS,
            },
        }
        for each in ids
    )
    return "".join(json.dumps(line) + "\n" for line in lines)


def upload(url: str, text: str) -> str:
    """The id of a file for batches."""
    parts = (
        f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n'
        f"content-type: application/jsonl\r\n\r\n{text}\r\n--{BOUNDARY}--\r\n"
    )
    request = urllib.request.Request(
        f"{url}/v1/files", parts.encode(), {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    )
    return str(json.loads(answer_to(request))["id"])


def follow(url: str, batch: dict[str, Any], at: int, command: str) -> tuple[dict[str, Any], int]:
    """The batch at its end, and how many lines were done when the command ran."""
    deadline, seen = time.monotonic() + LIMIT_SECONDS, 0
    while batch["status"] not in ENDED:
        if time.monotonic() > deadline:
            sys.exit(f"no end after {LIMIT_SECONDS:.0f} s: {batch}")
        done = batch["request_counts"]["completed"]
        if command and done >= at:
            subprocess.run(command, shell=True, check=True)
            command, seen = "", done
        time.sleep(0.1)
        batch = json.loads(fetch(f"{url}/v1/batches/{batch['id']}"))
    if command:
        sys.exit("the batch was done before it could be disturbed")
    return batch, seen


def check(ids: list[str], output: str) -> None:
    """Each custom_id once, each with an answer; stops the program otherwise."""
    lines = [json.loads(line) for line in output.splitlines()]
    times = Counter(line["custom_id"] for line in lines)
    if times != Counter(ids):
        missing, doubled = set(ids) - set(times), {name for name, count in times.items() if count > 1}
        sys.exit(f"missing: {sorted(missing)}; more than once: {sorted(doubled)}")
    bad = [line for line in lines if line["response"]["status_code"] != 200]
    if bad:
        sys.exit(f"{len(bad)} lines without an answer, such as {bad[0]}")


def call(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """POST JSON, read JSON."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    answer: dict[str, Any] = json.loads(answer_to(request))
    return answer


def fetch(url: str) -> bytes:
    """GET."""
    return answer_to(urllib.request.Request(url))


def answer_to(request: urllib.request.Request) -> bytes:
    """Its body; an error status stops the program with what the service said."""
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        sys.exit(f"{request.get_method()} {request.full_url}: {error.code} {error.read().decode()}")


if __name__ == "__main__":
    sys.exit(main())
