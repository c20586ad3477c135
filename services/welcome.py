"""What ``headway up`` prints once everything is ready: commands that work as pasted."""

from __future__ import annotations

import json
from pathlib import Path

from headway.services.terminal import Terminal, short_path

QUESTION = "What is a message queue?"
MAX_TOKENS = 200
"""A small model that is left alone may go on for minutes."""
TEMPERATURE = 0.2
"""At 1.0 a model of this size talks nonsense more often than not."""


def curl_command(url: str, model: str) -> str:
    """A streaming chat completion with curl."""
    message = {"role": "user", "content": QUESTION}
    body = {
        "model": model,
        "stream": True,
        "temperature": TEMPERATURE,
        "max_tokens": MAX_TOKENS,
        "messages": [message],
    }
    return (
        f"curl -N {url}/v1/chat/completions \\\n"
        "  -H 'Content-Type: application/json' \\\n"
        f"  -d '{json.dumps(body)}'"
    )


def python_snippet(url: str, model: str) -> str:
    """The same with the openai client; works as a file and typed into an interpreter."""
    return "\n".join(
        [
            "from openai import OpenAI",
            f'client = OpenAI(base_url="{url}/v1", api_key="none")',
            f'messages = [{{"role": "user", "content": "{QUESTION}"}}]',
            "chunks = client.chat.completions.create(",
            f'    model="{model}", messages=messages, stream=True,',
            f"    temperature={TEMPERATURE}, max_tokens={MAX_TOKENS},",
            ")",
            "for chunk in chunks:",
            '    print(chunk.choices[0].delta.content or "", end="", flush=True)',
            "",
        ]
    )


def welcome(
    terminal: Terminal, url: str, model: str, logs: Path, *, command: str, options: str, has_batch: bool
) -> None:
    """Print the commands, where the logs are, and how to stop; ``command``: how ``headway`` is typed here."""
    terminal.line()
    terminal.line(terminal.paint("Ask it something:", "bold"))
    terminal.line()
    # No indentation from here on: what is printed is pasted.
    terminal.line(curl_command(url, model))
    terminal.line()
    terminal.line(terminal.paint("The same from Python (pip install openai):", "bold"))
    terminal.line()
    terminal.line(python_snippet(url, model))
    terminal.line(terminal.paint("Or through the queue, without HTTP:", "bold"))
    terminal.line()
    terminal.line(
        f'{command} tail{options} $({command} submit{options} --max-tokens {MAX_TOKENS} "{QUESTION}")'
    )
    terminal.line()
    terminal.line(f"  console   {url}/console/")
    if has_batch:
        terminal.line(f"  batches   {url}/v1/batches (their service starts now; what is posted waits for it)")
    terminal.line(f"  logs      {short_path(logs)}/*.log")
    terminal.line(f"  status    {command} status{options}")
    terminal.line("  stop      Ctrl-C (finishes open answers; twice: at once)")
    terminal.line()
