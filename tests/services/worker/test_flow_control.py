"""A job never runs further ahead of the queue than its bound, and never stands still for nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.services.flow_control import FlowControl


@given(
    limit=st.integers(1, 40),
    moves=st.lists(st.tuples(st.sampled_from(["step", "acknowledge"]), st.integers(1, 50)), max_size=100),
)
def test_the_bound_holds_and_an_idle_queue_holds_nobody(limit: int, moves: list[tuple[str, int]]) -> None:
    flow = FlowControl(limit)
    flow.open("job", ("job#0", "job#1"))
    held: set[str] = set()
    ahead = 0
    for move, count in moves:
        if move == "step":
            for request in ("job#0", "job#1"):
                if request not in held:
                    ahead += 1
                    held.update(flow.emitted(request, 1))
        else:
            written = min(count, ahead)
            ahead -= written
            held.difference_update(flow.acknowledged("job", written))
        assert ahead <= limit + 1, "at most the rest of the step that reached the bound"
        if held:
            assert ahead > limit // 2
    flow.acknowledged("job", ahead)
    assert flow.emitted("job#0", 0) == ()


def test_an_ended_request_is_not_held_and_leaves_nothing_behind() -> None:
    flow = FlowControl(4)
    flow.open("job", ("job#0", "job#1"))
    flow.close("job#0")
    assert flow.emitted("job#1", 9) == ("job#1",)
    flow.close("job#1")
    assert flow.acknowledged("job", 9) == ()
    assert flow.emitted("job#1", 9) == ()
    flow.open("job", ("job#0",))
    assert flow.emitted("job#0", 3) == (), "a later claim of the same job starts from nothing"
