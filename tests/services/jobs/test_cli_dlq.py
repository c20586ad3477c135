"""``headway dlq``: jobs that were given up are seen, posted again or forgotten, and none but those meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.services.jobs.conftest import dead, values

from headway.queueing.client import Client
from headway.queueing.messages import decode_job

if TYPE_CHECKING:
    from tests.contract.conftest import Bench
    from tests.services.jobs.conftest import Play
    from tests.services.up.conftest import Command

LANE = "org--tiny:0"
MODEL = "org/tiny"


async def three_letters(bench: Bench) -> None:
    await dead(bench, "a", tenant="acme", prompt="first")
    await dead(bench, "b", reason="too_many_attempts")
    await dead(bench, "c")


def left(ask: Command) -> list[str]:
    """The keys of the jobs in the list."""
    return [line["job_id"].rpartition(":")[2] for line in values(ask("dlq", "list", "--json"))]


def test_list_has_headings_and_the_newest_first(ask: Command, play: Play) -> None:
    assert ask("dlq", "list").stdout == "no dead letters\n"
    assert ask("dlq", "list", "--json").stdout == ""
    play(three_letters)
    lines = ask("dlq", "list").stdout.splitlines()
    assert lines[0].split() == ["ID", "AGE", "TENANT", "REASON", "ATTEMPTS", "TOKENS", "JOB"]
    assert [line.split()[-1] for line in lines[1:]] == [f"{LANE}:{key}" for key in "cba"]
    newest = values(ask("dlq", "list", "--json"))[0]
    assert set(newest) == {
        *("entry_id", "job_id", "tenant", "reason", "attempts", "committed_tokens"),
        *("model", "died_ms"),
    }
    assert newest["died_ms"] == int(newest["entry_id"].split("-")[0])
    assert ask("dlq", "list", "--limit", "1").stdout.endswith("3 in all: --limit N\n")
    assert [line["tenant"] for line in values(ask("dlq", "list", "--json", "--reason", "engine_error"))] == [
        *("default", "acme")
    ]


def test_list_keeps_ids_whole_at_80_columns(ask: Command, play: Play) -> None:
    play(three_letters)
    for line in ask("dlq", "list", COLUMNS="60").stdout.splitlines()[1:]:
        assert len(line) <= 60
        assert LANE in line


def test_show_takes_a_letters_id_or_its_jobs(ask: Command, play: Play) -> None:
    play(three_letters)
    entry_id = values(ask("dlq", "list", "--json"))[1]["entry_id"]
    by_entry, by_job = ask("dlq", "show", entry_id).stdout, ask("dlq", "show", f"{LANE}:b").stdout
    assert by_entry == by_job
    assert "reason    too_many_attempts" in by_entry
    assert "first token" in by_entry
    (shown,) = values(ask("dlq", "show", entry_id, "--json"))
    assert (shown["entry_id"], shown["job"]["job_id"]) == (entry_id, f"{LANE}:b")


def test_show_after_the_jobs_record_has_gone(ask: Command, play: Play) -> None:
    async def gone(bench: Bench) -> None:
        bench.make(record_retention_seconds=0.05, stream_retention_seconds=0.05)
        await dead(bench, "a", tenant="acme")
        await bench.elapse(0.06)

    play(gone)
    text = ask("dlq", "show", f"{LANE}:a").stdout
    assert "no longer kept" in text
    assert "acme" in text
    (shown,) = values(ask("dlq", "show", f"{LANE}:a", "--json"))
    assert shown["job"] is None
    assert ask("dlq", "redrive", f"{LANE}:a").returncode == 0


def test_redrive_of_one_posts_its_body_as_a_new_job(ask: Command, play: Play) -> None:
    play(three_letters)
    (done,) = values(ask("dlq", "redrive", f"{LANE}:a", "--json"))
    assert done["job_id"] == f"{LANE}:a"
    assert left(ask) == ["c", "b"]

    async def claimed(bench: Bench) -> tuple[str, str | None, str]:
        claim = await bench.claim_one()
        job = decode_job(claim.body)
        return claim.job_id, job.prompt, job.tenant

    assert play(claimed) == (done["new_job_id"], "first", "acme")


def test_redrive_of_many_asks_first(ask: Command, play: Play) -> None:
    play(three_letters)
    for no in ("n\n", "\n"):
        refused = ask("dlq", "redrive", "--all", stdin=no)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "Post 3 dead letters again" in refused.stderr
        assert "nothing was done" in refused.stderr
    nobody = ask("dlq", "redrive", "--reason", "engine_error")
    assert (nobody.returncode, "--yes" in nobody.stderr) == (2, True)
    assert left(ask) == ["c", "b", "a"]
    done = ask("dlq", "redrive", "--reason", "engine_error", stdin="y\n")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [f"{LANE}:a", f"{LANE}:c"]
    assert left(ask) == ["b"]
    assert ask("dlq", "redrive", "--all", "--yes").returncode == 0
    assert left(ask) == []


def test_redrive_into_a_full_queue_says_what_is_left(
    ask: Command, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(three_letters)
    monkeypatch.setattr("headway.services.job_commands.open_queue", _of_one_job)
    stopped = ask("dlq", "redrive", "--all", "--yes")
    assert stopped.returncode == 1
    assert len(stopped.stdout.splitlines()) == 1
    assert "2 of 3 letters are where they were" in stopped.stderr
    assert "the same again in" in stopped.stderr
    assert left(ask) == ["c", "b"]


def _of_one_job(url: str) -> object:
    from headway.queueing.redis_queue import RedisQueue
    from headway.queueing.settings import QueueSettings

    return RedisQueue(url, QueueSettings(max_queued_jobs=1))


def test_a_letter_without_a_body_is_told_and_stops_no_other(ask: Command, play: Play, redis_url: str) -> None:
    import redis

    play(three_letters)
    with redis.Redis.from_url(redis_url) as raw:
        raw.delete(f"p:{{{LANE}}}:b")
    done = ask("dlq", "redrive", "--all", "--yes")
    assert done.returncode == 1
    assert "nothing is kept of b" in done.stdout
    assert left(ask) == ["b"]


def test_a_letter_whose_body_is_no_job_is_told_and_stops_no_other(
    ask: Command, play: Play, redis_url: str
) -> None:
    import redis

    play(three_letters)
    with redis.Redis.from_url(redis_url) as raw:
        raw.set(f"p:{{{LANE}}}:a", '{"model": 5')
    done = ask("dlq", "redrive", "--all", "--yes")
    assert done.returncode == 1
    assert "body: not valid JSON" in done.stdout
    assert left(ask) == ["a"]


def test_a_server_that_fills_up_meanwhile_leaves_what_was_done_told(
    ask: Command, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(three_letters)
    monkeypatch.setattr("headway.services.job_commands.open_queue", _full_after_one)
    stopped = ask("dlq", "redrive", "--all", "--yes")
    assert (stopped.returncode, len(stopped.stdout.splitlines())) == (3, 1)
    assert "takes nothing now" in stopped.stderr
    assert left(ask) == ["c", "b"]


def _full_after_one(url: str) -> object:
    from headway.queueing.errors import NotNowError
    from headway.queueing.protocol import Submitted
    from headway.queueing.redis_queue import RedisQueue

    class Filling(RedisQueue):
        done = 0

        async def redrive(self, model: str, entry_id: str, *, key: str | None = None) -> Submitted:
            self.done += 1
            if self.done > 1:
                raise NotNowError("the queue's server is full")
            return await super().redrive(model, entry_id, key=key)

    return Filling(url)


def test_purge_asks_forgets_what_was_meant_and_counts(ask: Command, play: Play) -> None:
    play(three_letters)
    refused = ask("dlq", "purge", f"{LANE}:a", stdin="no\n")
    assert (refused.returncode, "Forget 1 dead letter for good" in refused.stderr) == (1, True)
    assert left(ask) == ["c", "b", "a"]
    assert ask("dlq", "purge", f"{LANE}:a", "--yes").stdout == "purged 1\n"
    assert values(ask("dlq", "purge", "--reason", "engine_error", "--json", stdin="yes\n")) == [{"purged": 1}]
    assert left(ask) == ["b"]
    assert ask("dlq", "purge", "--all", "-y").stdout == "purged 1\n"
    again = ask("dlq", "purge", "--all", "-y")
    assert (again.returncode, "there is no dead letter here" in again.stderr) == (1, True)


@pytest.mark.parametrize("verb", ["redrive", "purge"])
@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        ("", 2, "give their IDs, --reason REASON, or --all"),
        ("1-0 --all", 2, "say which dead letters"),
        ("--all --reason x", 2, "say which dead letters"),
        ("1-0 --yes", 1, "no dead letter '1-0' here"),
        ("what --yes", 1, "headway dlq list"),
        ("--reason nobody_knows --yes", 1, "no dead letter with the reason nobody_knows"),
        ("--all --yes --model org/other", 1, "there is no dead letter here"),
    ],
)
def test_nothing_is_done_where_it_is_not_clear_to_what(
    ask: Command, play: Play, verb: str, options: str, code: int, told: str
) -> None:
    play(three_letters)
    done = ask("dlq", verb, *options.split())
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert left(ask) == ["c", "b", "a"]


def test_a_redriven_job_is_answered(ask: Command, play: Play) -> None:
    play(three_letters)
    (done,) = values(ask("dlq", "redrive", f"{LANE}:c", "--json"))

    async def answer(bench: Bench) -> str:
        await bench.finish(await bench.claim_one(), bench.token(1, "again"))
        return (await Client(bench.queue).result(done["new_job_id"])).choices[0].text

    assert play(answer) == "again"
