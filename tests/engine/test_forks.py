"""Several answers to one prompt: its KV is computed once, shared in full blocks, copied where both write."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.engine.rig import Rig

from headway.engine.errors import RequestError
from headway.engine.values import RequestSpec, Sampling, StepPlan

PROMPT = 8
"""Tokens in blocks of 2: a branch takes over 7 of them, three full blocks and half of one."""


def rig_without_cache(
    blocks: int = 24, sequences: int = 8, slots: int = 0, policy: str = "fcfs", copy_delay: int = 0
) -> Rig:
    """So that whatever is shared is shared by forking."""
    return Rig(
        blocks=blocks,
        sequences=sequences,
        slots=slots,
        policy=policy,
        copy_delay=copy_delay,
        has_cache=False,
    )


def fork(rig: Rig, parent: RequestSpec, name: str, seed: int, **changes: object) -> RequestSpec:
    """A branch of ``parent`` that draws its own tokens."""
    spec = replace(
        parent,
        request_id=name,
        sampling=Sampling(seed=seed),
        fork_of=parent.request_id,
        **changes,  # type: ignore[arg-type]  # fields of the spec
    )
    rig.scheduler.add(spec)
    rig.tokens[name], rig.ends[name] = list(spec.generated_token_ids), []
    return spec


def computed(plan: StepPlan | None) -> dict[str, int]:
    """Tokens that a plan computes of each request."""
    assert plan is not None
    return {chunk.key.request_id: len(chunk.token_ids) for chunk in plan.chunks}


def tables(plan: StepPlan) -> dict[str, tuple[int, ...]]:
    return {chunk.key.request_id: chunk.block_table for chunk in plan.chunks}


def test_branches_wait_for_the_prompt_and_then_compute_its_last_token_only() -> None:
    rig = rig_without_cache()
    parent = rig.add("parent", prompt=PROMPT)
    branches = [fork(rig, parent, f"branch{seed}", seed) for seed in (1, 2, 3)]
    assert computed(rig.step()) == {"parent": PROMPT}
    plan = rig.plan()
    assert computed(plan) == {"parent": 1, "branch1": 1, "branch2": 1, "branch3": 1}
    assert plan is not None
    blocks = tables(plan)
    for branch in branches:
        assert blocks[branch.request_id][:3] == blocks["parent"][:3]
        assert blocks[branch.request_id][3] not in blocks["parent"]
    assert {copy.source for copy in plan.copies} == {blocks["parent"][3]}
    assert [copy.target for copy in plan.copies] == [blocks[b.request_id][3] for b in branches]
    rig.apply(plan)
    rig.run()
    assert all(rig.is_right(spec) for spec in (parent, *branches))
    assert len({tuple(rig.tokens[spec.request_id]) for spec in (parent, *branches)}) == 4
    assert rig.scheduler.load.extra["forked_tokens"] == 3 * (PROMPT - 1)


def test_nothing_is_copied_where_what_is_shared_ends_with_a_block() -> None:
    rig = rig_without_cache()
    parent = rig.add("parent", prompt=PROMPT - 1)
    branch = fork(rig, parent, "branch", 1)
    rig.step()
    plan = rig.plan()
    assert plan is not None
    assert computed(plan) == {"parent": 1, "branch": 1}
    assert plan.copies == ()
    rig.apply(plan)
    rig.run()
    assert rig.is_right(branch)


def test_a_branch_that_brings_tokens_of_an_earlier_owner_shares_the_whole_prompt() -> None:
    rig = rig_without_cache()
    parent = rig.add("parent", prompt=PROMPT, max_tokens=12)
    rig.step()
    rig.step()
    kept = rig.runner.reference(parent.prompt_token_ids, Sampling(seed=5), 4)
    branch = fork(rig, parent, "branch", 5, generated_token_ids=kept)
    assert computed(rig.step()) == {"parent": 1, "branch": 4}
    rig.run()
    assert rig.is_right(branch)


@pytest.mark.parametrize("fate", ["unknown", "ended", "waiting", "held"])
def test_without_a_parent_that_is_about_to_be_ready_a_branch_starts_as_any_request(fate: str) -> None:
    rig = rig_without_cache(sequences=1 if fate == "waiting" else 8, policy="priority")
    parent = rig.add("parent", prompt=PROMPT)
    if fate == "ended":
        rig.run()
    elif fate == "held":
        rig.scheduler.hold("parent")
    elif fate == "unknown":
        parent = replace(parent, request_id="nobody")
    # With one place only, the parent is still behind the branch: that one is of a better class.
    branch = fork(rig, parent, "branch", 1, priority=0)
    for _ in range(40):
        rig.step()
        if rig.ends["branch"]:
            break
    assert rig.is_right(branch)
    assert rig.scheduler.load.extra["forked_tokens"] == 0


def test_a_branch_outlives_its_parent_and_its_siblings() -> None:
    rig = rig_without_cache()
    parent = rig.add("parent", prompt=PROMPT, max_tokens=2)
    branch = fork(rig, parent, "branch", 1, max_tokens=12)
    late = fork(rig, parent, "late", 2, max_tokens=12)
    rig.run()
    assert rig.is_right(parent)
    assert rig.is_right(branch)
    assert rig.is_right(late)


@pytest.mark.parametrize("slots", [0, 64])
def test_branches_that_give_way_come_back_with_the_same_answers(slots: int) -> None:
    rig = rig_without_cache(blocks=14, slots=slots)
    parent = rig.add("parent", prompt=PROMPT, max_tokens=12)
    branches = [fork(rig, parent, f"branch{seed}", seed) for seed in (1, 2, 3)]
    rig.run()
    assert rig.preemptions > 0
    assert all(rig.is_right(spec) for spec in (parent, *branches))


@pytest.mark.parametrize("change", [{"tenant": "other"}, {"prompt_token_ids": (1, 2, 3)}])
def test_nobody_branches_off_another_prompt_or_another_tenant(change: dict[str, object]) -> None:
    rig = rig_without_cache()
    parent = rig.add("parent", prompt=PROMPT)
    with pytest.raises(RequestError, match="cannot be a fork of parent"):
        fork(rig, parent, "branch", 1, **change)
    rig.run()
    assert rig.is_right(parent)


def test_a_plan_ahead_waits_for_the_result_before_it_forks() -> None:
    rig = rig_without_cache()
    parent = rig.add("parent", prompt=PROMPT)
    branch = fork(rig, parent, "branch", 1)
    plan = rig.plan()
    assert plan is not None
    ahead = rig.scheduler.plan_ahead(plan, rig.now)
    assert ahead is None, "the step under way may still fail, and with it the prompt"
    rig.apply(plan)
    assert computed(rig.step()) == {"parent": 1, "branch": 1}
    rig.run()
    assert rig.is_right(branch)


def test_a_copy_whose_plan_is_lost_travels_with_the_next() -> None:
    rig = rig_without_cache()
    parent = rig.add("parent", prompt=PROMPT)
    branch = fork(rig, parent, "branch", 1)
    rig.step()
    lost = rig.plan()
    again = rig.plan()
    assert lost is not None
    assert again is not None
    assert lost.copies == again.copies != ()
    rig.apply(again)
    rig.run()
    assert rig.is_right(branch)


@pytest.mark.parametrize("copy_delay", range(4))
def test_a_branch_waits_for_a_parent_that_is_on_its_way_from_the_host(copy_delay: int) -> None:
    rig = rig_without_cache(slots=64, policy="priority", copy_delay=copy_delay)
    rig.add("other", prompt=2, max_tokens=20, first=90, priority=0)
    parent = rig.add("parent", prompt=PROMPT, priority=2)
    rig.step()
    rig.add("high", prompt=34, max_tokens=3, first=40, priority=0)
    rig.step()
    assert rig.preemptions == 1
    rig.scheduler.hold("parent")
    while rig.memory.is_swapping or not rig.ends["high"]:
        rig.step()
    branch = fork(rig, parent, "branch", 1)
    rig.scheduler.unhold("parent")
    rig.run()
    assert rig.is_right(parent)
    assert rig.is_right(branch)
    assert rig.scheduler.load.extra["forked_tokens"] == PROMPT - 1
