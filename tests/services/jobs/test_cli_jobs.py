"""``headway jobs``: what it lists and shows, of jobs in each state, and what it does to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.services.jobs.conftest import values

if TYPE_CHECKING:
    from tests.contract.conftest import Bench
    from tests.services.jobs.conftest import Play
    from tests.services.up.conftest import Command

LANE = "org--tiny:0"
FIELDS = {
    *("job_id", "state", "reason", "tenant", "priority"),
    *("tokens", "worker", "created_ms", "since_ms"),
}


async def one_of_each(bench: Bench) -> None:
    """``end`` has ended, ``run`` runs, ``w1`` to ``w3`` wait."""
    await bench.submit("end", tenant="acme")
    await bench.finish(await bench.claim_one(), bench.token(1), bench.token(2))
    await bench.submit("run", tenant="zeta", priority="interactive")
    await bench.emit(await bench.claim_one(), bench.token(1))
    for key, tenant in (("w1", "acme"), ("w2", "acme"), ("w3", "zeta")):
        await bench.submit(key, tenant=tenant, priority="batch")


def keys(lines: list[dict[str, str]]) -> list[str]:
    return [line["job_id"].removeprefix(f"{LANE}:") for line in lines]


def test_list_shows_jobs_of_every_state_with_headings(ask: Command, play: Play) -> None:
    play(one_of_each)
    lines = ask("jobs", "list").stdout.splitlines()
    assert lines[0].split() == ["STATE", "SINCE", "TENANT", "CLASS", "TOKENS", "WORKER", "JOB"]
    assert [(line.split()[0], line.split()[-1]) for line in lines[1:6]] == [
        ("running", f"{LANE}:run"),
        *(("waiting", f"{LANE}:{key}") for key in ("w1", "w2", "w3")),
        ("stop", f"{LANE}:end"),
    ]
    assert lines[-1] == "3 waiting, 1 running"


def test_list_for_scripts_has_a_line_for_each_job(ask: Command, play: Play) -> None:
    play(one_of_each)
    lines = values(ask("jobs", "list", "--json"))
    assert all(set(line) == FIELDS for line in lines)
    assert keys(lines) == ["run", "w1", "w2", "w3", "end"]
    assert (lines[0]["state"], lines[0]["worker"], lines[0]["tokens"]) == ("running", "w1", 1)
    assert (lines[-1]["state"], lines[-1]["reason"], lines[-1]["tokens"]) == ("ended", "stop", 2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--tenant acme", ["w1", "w2", "end"]),
        ("--tenant zeta --state running", ["run"]),
        ("--state waiting", ["w1", "w2", "w3"]),
        ("--state waiting --limit 2", ["w1", "w2"]),
        ("--state ended", ["end"]),
        ("--limit 1", ["run", "w1", "end"]),
        ("--model org/tiny --state running", ["run"]),
        ("--tenant nobody", []),
    ],
)
def test_list_takes_tenant_state_model_and_limit(
    ask: Command, play: Play, options: str, expected: list[str]
) -> None:
    play(one_of_each)
    assert keys(values(ask("jobs", "list", *options.split(), "--json"))) == expected


def test_list_says_when_there_is_more_or_nothing(ask: Command, play: Play) -> None:
    assert ask("jobs", "list").stdout.splitlines()[0] == "no such job"
    assert ask("jobs", "list", "--json").stdout == ""
    play(one_of_each)
    assert ask("jobs", "list", "--limit", "1").stdout.endswith("there are more than shown: --limit N\n")
    assert "more than shown" not in ask("jobs", "list", "--limit", "3").stdout
    asked = ask("jobs", "list", "--model", "org/tinny")
    assert "no worker has served 'org/tinny' yet (served here: org/tiny)" in asked.stderr


@pytest.mark.parametrize("width", [64, 80, 160])
def test_list_keeps_ids_whole_and_lines_short_on_a_narrow_terminal(
    ask: Command, play: Play, width: int
) -> None:
    async def long_names(bench: Bench) -> None:
        await bench.submit(tenant="a-tenant-with-a-very-long-name@example.com")
        await bench.claim_one("w-a-host-with-a-long-name.example.com-12345-abcdef")

    play(long_names)
    (job_id,) = (line["job_id"] for line in values(ask("jobs", "list", "--json")))
    shown = ask("jobs", "list", COLUMNS=str(width)).stdout
    assert job_id in shown
    assert max(map(len, shown.splitlines())) <= width
    assert ("a-tenant-with-a-very-long-name@example.com" in shown) == (width == 160)


def test_show_tells_a_jobs_life_step_by_step(ask: Command, play: Play) -> None:
    async def life(bench: Bench) -> str:
        bench.make(lease_seconds=0.02)
        job_id = await bench.submit("k1", tenant="acme", priority="batch", metadata={"batch": "7"})
        await bench.claim_one("w0")
        await bench.elapse(0.03)
        await bench.queue.reap("org/tiny")
        first = await bench.claim_one("w1")
        await bench.emit(first, bench.token(1), bench.token(2))
        await bench.queue.release([(job_id, first.token)])
        await bench.finish(await bench.claim_one("w2"), bench.token(3))
        return job_id

    job_id = play(life)
    (shown,) = values(ask("jobs", "show", job_id, "--json"))
    assert [(step["event"], step["worker"], step["tokens"]) for step in shown["timeline"]] == [
        ("accepted", None, 0),
        ("claimed", "w0", 0),
        ("lost", "w0", 0),
        ("claimed", "w1", 0),
        ("first token", "w1", 0),
        ("handed back", "w1", 2),
        ("resumed", "w2", 2),
        ("ended", "w2", 3),
    ]
    times = [step["at_ms"] for step in shown["timeline"]]
    assert times == sorted(times)
    assert times[0] == shown["created_ms"]
    assert times[-1] == shown["finished_ms"]
    assert (shown["state"], shown["reason"], shown["attempts"], shown["settled"]) == (
        "ended",
        "stop",
        1,
        None,
    )
    for width in ("80", "160"):
        text = ask("jobs", "show", job_id, COLUMNS=width).stdout
        assert "metadata  batch=7" in text
        assert "TIME (UTC)" in text
        assert "acme, batch" in text
        assert [line.split()[0] for line in text.splitlines()[:2]] == ["job", "state"]


def test_show_tells_of_deadline_reservation_settlement_and_cancel(ask: Command, play: Play) -> None:
    play(one_of_each)
    ask("tenants", "set", "acme", "--rpm", "100")
    ask("submit", "x", "--model", "org/tiny", "--tenant", "acme", "--deadline", "5m")
    (line,) = (
        line
        for line in values(ask("jobs", "list", "--tenant", "acme", "--state", "waiting", "--json"))
        if line["priority"] == "standard"
    )
    text = ask("jobs", "show", line["job_id"]).stdout
    assert "reserved" in text
    assert "deadline 5m00s" in text
    assert "not settled yet" in text
    assert values(ask("jobs", "cancel", line["job_id"], "--json")) == [
        {"job_id": line["job_id"], "met": "queued"}
    ]
    (shown,) = values(ask("jobs", "show", line["job_id"], "--json"))
    assert shown["timeline"][-1]["detail"] == "cancelled, cancelled from the command line"


def test_a_running_job_that_is_cancelled_shows_so(ask: Command, play: Play) -> None:
    play(one_of_each)
    assert ask("jobs", "cancel", f"{LANE}:run").stdout == "running\n"
    assert "cancel    cancelled from the command line" in ask("jobs", "show", f"{LANE}:run").stdout


def test_tail_prints_the_answer(ask: Command, play: Play) -> None:
    play(one_of_each)
    done = ask("jobs", "tail", f"{LANE}:end")
    assert (done.returncode, done.stdout) == (0, "t1 t2 \n")
    assert [line["event"] for line in values(ask("jobs", "tail", f"{LANE}:end", "--json"))] == [
        *("tokens", "tokens", "end")
    ]


def test_retry_posts_the_same_again_and_says_whose_repeat_it_is(ask: Command, play: Play) -> None:
    play(one_of_each)
    new = ask("jobs", "retry", f"{LANE}:end").stdout.strip()
    assert new.startswith(f"{LANE}:0")
    (shown,) = values(ask("jobs", "show", new, "--json"))
    assert (shown["retry_of"], shown["state"], shown["tenant"]) == (f"{LANE}:end", "waiting", "acme")
    assert f"again {LANE}:end" in ask("jobs", "show", new).stdout
    (told,) = values(ask("jobs", "retry", f"{LANE}:end", "--json"))
    assert told["retry_of"] == f"{LANE}:end"


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        (f"show {LANE}:none", 1, "no job org--tiny:0:none"),
        (f"show {LANE}:none", 1, "try: headway jobs list"),
        ("show what", 1, "'what' is not a job id"),
        (f"tail {LANE}:none", 1, "no job"),
        (f"cancel {LANE}:none", 1, "no job"),
        (f"retry {LANE}:none", 1, "nothing is kept of none"),
        (f"retry {LANE}:run", 2, "has not ended yet"),
        ("list --state gone", 2, "waiting"),
        ("list --limit 0", 2, "--limit"),
        ("list --model a--b", 2, "'a--b'"),
        ("show", 2, "JOB"),
    ],
)
def test_what_cannot_be_done_is_told(ask: Command, play: Play, line: str, code: int, told: str) -> None:
    play(one_of_each)
    done = ask("jobs", *line.split())
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "jobs list",
        "jobs show m:0:k",
        "jobs retry m:0:k",
        "dlq list",
        "dlq purge --all",
        "dlq redrive --all",
        "workers",
        "top --once",
    ],
)
def test_without_a_server_the_exit_code_is_3(command: Command, line: str) -> None:
    nobody = command(*line.split(), "--redis-url", "redis://127.0.0.1:1/0")
    assert (nobody.returncode, "no Redis or Valkey answers" in nobody.stderr) == (3, True)
    nothing = command(*line.split())
    assert (nothing.returncode, "headway up" in nothing.stderr) == (3, True)
