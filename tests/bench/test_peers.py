"""What ``make bench-peers`` says is what was measured: figures, ratios, arms, work; bad options refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def characters(text: str) -> list[int]:
    """A tokenizer of one token a character."""
    return [ord(character) for character in text]


def test_a_cell_counts_all_tokens_from_the_first_request_to_the_last_event(bench: Any) -> None:
    figures = bench("peer_figures")
    answers = [figures.Timed(1.0, (1.5, 1.6, 1.8), 3), figures.Timed(2.0, (2.1, 3.0), 4)]
    cell = figures.cell_of(answers)
    assert cell["tokens_per_second"] == pytest.approx(7 / 2.0)
    assert cell["ttft_p50_ms"] == pytest.approx(100.0)
    assert cell["itl_p50_ms"] == pytest.approx(200.0)
    assert cell["itl_p99_ms"] == pytest.approx(900.0)
    assert cell["tokens_per_event"] == pytest.approx(7 / 5)


def test_answers_of_one_event_have_no_gaps(bench: Any) -> None:
    figures = bench("peer_figures")
    assert figures.cell_of([figures.Timed(0.0, (0.5,), 2)])["itl_p99_ms"] == 0.0


def rates(*values: float) -> dict[int, dict[str, float]]:
    return {number: {"tokens_per_second": value} for number, value in enumerate(values)}


def test_the_ratio_is_to_the_best_peer_of_the_same_rounds(bench: Any) -> None:
    ours = {"ours": rates(300.0, 100.0, 210.0)}
    peers = {"slow": rates(10.0, 10.0, 10.0), "fast": rates(100.0, 50.0, 100.0), "never": rates()}
    found = bench("peer_figures").ratio_to_best(ours, "ours", peers)
    assert (found.ours, found.best, found.ratio) == ("ours", "fast", 2.1)
    assert found.rounds == (3.0, 2.0, 2.1)


def test_a_round_that_the_peer_did_not_run_is_not_compared(bench: Any) -> None:
    peers = {"peer": {1: {"tokens_per_second": 50.0}}}
    found = bench("peer_figures").ratio_to_best({"ours": rates(1000.0, 100.0)}, "ours", peers)
    assert found.rounds == (2.0,)


def test_rounds_are_added_to_a_report_of_the_same_work_only(bench: Any) -> None:
    machine = {"cpu": "c", "cores": 2, "model": "m", "requests": 4, "load": [9]}
    written = {"machine": machine, "rounds": {"ours": {"16": {"0": {"tokens_per_second": 5.0}}}}}
    kept = bench("peer_figures").kept_rounds(json.loads(json.dumps(written)), machine | {"load": [0]})
    assert kept == {"ours": {16: {0: {"tokens_per_second": 5.0}}}}
    with pytest.raises(ValueError, match="requests was 4 in it and is 64 now"):
        bench("peer_figures").kept_rounds(written, machine | {"requests": 64})


def test_celerys_door_and_worker_run_in_the_environment_of_transformers(bench: Any, tmp_path: Path) -> None:
    arms = bench("peer_arms")
    (arm,) = arms.choose_arms("celery-bf16", tmp_path)
    started = arms.launch(arm, tmp_path, tmp_path / "model", 1234, tmp_path / "turn")
    assert started.is_server
    assert started.command[0] == str(tmp_path / "transformers/bin/python")
    assert started.command[2].endswith("celery_generate.py")
    (other,) = arms.choose_arms("transformers-bf16", tmp_path)
    assert not arms.launch(other, tmp_path, tmp_path / "model", 1, tmp_path).is_server


def test_transformers_and_celery_run_where_they_are_installed_and_are_never_installed_unasked(
    bench: Any, tmp_path: Path
) -> None:
    arms = bench("peer_arms")

    def usual() -> set[str]:
        return {arm.name for arm in arms.choose_arms(None, tmp_path)}

    without, both = usual(), {"transformers-bf16", "celery-bf16"}
    assert not without & both
    mark = tmp_path / "transformers/installed"
    mark.parent.mkdir()
    mark.write_text("transformers==1.0")  # another version: it would be installed anew
    assert usual() == without
    mark.write_text(arms.PEERS["transformers"].requirement)
    assert usual() == without | both


def test_no_peer_gives_no_ratio(bench: Any) -> None:
    ratio = bench("peer_figures").ratio_to_best
    assert ratio({"ours": rates(1.0)}, "ours", {"peer": {}}) is None
    assert ratio({"ours": {}}, "ours", {"peer": rates(1.0)}) is None


def test_the_table_names_what_was_left_out_and_what_was_missed(bench: Any) -> None:
    cell = dict.fromkeys(bench("peer_figures").FIGURES, 12.5)
    ratio = {"ours": "headway-auto", "best": "p", "ratio": 1.2, "rounds": (1.1, 1.3), "goal": 1.5}
    report = {
        "medians": {"4": {"headway-auto": cell}},
        "ratios": {"4": [{**ratio, "verdict": "missed"}]},
        "left_out": {"q": "pip said no"},
    }
    text = "\n".join(bench("peer_figures").table(report))
    assert "headway-auto / p: 1.20 times (1.10 to 1.30), goal 1.5 times: missed" in text
    assert "q: pip said no" in text


def test_a_peers_name_means_its_usual_arms_and_headway_means_ours(bench: Any, tmp_path: Path) -> None:
    arms = bench("peer_arms")

    def named(names: str | None) -> list[Any]:
        found: list[Any] = arms.choose_arms(names, tmp_path)
        return found

    assert [arm.name for arm in named("headway,vllm")] == [
        "headway-auto",
        "headway-bf16",
        "vllm-bf16",
    ]
    assert [arm.name for arm in named("llama.cpp-q4_1")] == ["llama.cpp-q4_1"]
    assert {arm.peer for arm in named(None)} == {None, *arms.PEERS} - {"transformers"}
    assert [arm.name for arm in named("transformers")] == ["transformers-bf16", "celery-bf16"]


def test_every_peers_version_is_pinned(bench: Any) -> None:
    assert all("==" in peer.requirement for peer in bench("peer_arms").PEERS.values())


@pytest.mark.parametrize("text", ["", "0", "33", "4,x", "1.5", "-1"])
def test_a_wrong_concurrency_is_refused(bench: Any, text: str) -> None:
    with pytest.raises(ValueError, match="1 to 32"):
        bench("peer_arms").choose_concurrencies(text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arms", "lama"], "no arm or peer 'lama': choose among headway"),
        (["--arms", ","], "no arm is named"),
        (["--concurrencies", "64"], "1 to 32"),
        (["--rounds", "0"], "1 or more"),
        (["--requests", "-1"], "1 or more"),
    ],
)
def test_a_wrong_option_ends_with_a_message(
    bench: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench("peers").parse(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 5, 64])
def test_work_has_the_lengths_asked_for_and_prompts_that_share_the_template_only(
    bench: Any, count: int
) -> None:
    work_of = bench("peer_work")
    around = ((1, 2, 3), (4, 5))
    work = work_of.make_work(count, "cell", encode=characters, around=around)
    assert len(work) == count
    for one in work:
        assert one.prompt[:3] == (1, 2, 3)
        assert one.prompt[-2:] == (4, 5)
        assert 120 <= len(one.prompt) <= 240
        assert 48 <= one.answer_tokens <= 140
    assert sum(len(one.prompt) for one in work) / count == pytest.approx(180, abs=1)
    assert sum(one.answer_tokens for one in work) / count == pytest.approx(94, abs=1)
    assert len({one.prompt for one in work}) == count


def test_whether_an_arm_is_there_is_asked_with_a_few_tokens(bench: Any) -> None:
    """A slow one on a busy machine takes over a minute for a whole answer: it was left out as not started."""
    module = bench("peer_work")
    (whole,) = module.make_work(1, "first", encode=characters, around=((1, 2, 3), (4, 5)))
    short = module.first_of(whole)
    assert (short.prompt, short.answer_tokens) == (whole.prompt[:4], 4)


def test_work_is_the_same_for_everybody_and_another_in_each_cell(bench: Any) -> None:
    make = bench("peer_work").make_work
    first, again, other = (make(8, seed, encode=characters, around=((), ())) for seed in ("a", "a", "b"))
    assert first == again
    assert not {one.prompt for one in first} & {one.prompt for one in other}


def test_the_templates_ids_are_what_two_messages_share(bench: Any) -> None:
    def render(text: str) -> list[int]:
        return [7, 8, *characters(text), 9]

    assert bench("peer_work").template_ids(render) == ((7, 8), (9,))


def test_who_answers_one_at_a_time_is_not_warmed_up_with_a_batch(bench: Any) -> None:
    arms = {arm.name: arm for arm in bench("peer_arms").ARMS}
    warm_ups = bench("peers").warm_ups
    assert warm_ups(arms["vllm-bf16"], 32) == [("warm-up", 32), ("warm-up alone", 1)]
    assert warm_ups(arms["celery-bf16"], 32) == [("warm-up alone", 1)]


def test_what_goes_wrong_in_a_turn_is_told_once_and_whole(bench: Any) -> None:
    inner = ExceptionGroup("clients", [OSError("gone"), OSError("gone")])
    assert bench("peers").messages(ExceptionGroup("turn", [ValueError("odd"), inner])) == [
        "ValueError: odd",
        "OSError: gone",
        "OSError: gone",
    ]


def test_a_failed_install_says_what_pip_said(bench: Any, tmp_path: Path) -> None:
    peer = bench("peer_arms").Peer("odd", "./no-such-folder-of-a-package")
    setup = bench("peer_setup")
    with pytest.raises(setup.SetupError, match="cannot be installed"):
        setup.install(peer, tmp_path)
    assert not (tmp_path / "odd/installed").exists()


def test_an_installed_peer_is_not_installed_again(bench: Any, tmp_path: Path) -> None:
    peer = bench("peer_arms").Peer("odd", "./no-such-folder-of-a-package")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/installed").write_text(peer.requirement)
    bench("peer_setup").install(peer, tmp_path)


def test_links_that_a_wheel_cannot_hold_are_made_from_its_list(bench: Any, tmp_path: Path) -> None:
    listed = tmp_path / "_symlinks.json"
    listed.write_text('{"liba.so": "liba.so.0", "liba.so.0": "liba.so.0.1"}')
    (tmp_path / "liba.so.0.1").write_text("code")
    for _ in range(2):  # an install that was cut off is done again
        bench("peer_setup").restore_links(listed)
    assert (tmp_path / "liba.so").read_text() == "code"
