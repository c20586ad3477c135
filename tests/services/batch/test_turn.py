"""A batch goes from its file to its results, each line exactly once, whatever happens on the way."""

from __future__ import annotations

from tests.services.batch.conftest import Service, chat_line


async def test_every_line_of_a_batch_is_answered_once(service: Service) -> None:
    ids = [f"line-{n}" for n in range(30)]
    batch_id = await service.post(*(chat_line(each) for each in ids))
    assert await service.turn(batch_id)
    batch = await service.batch(batch_id)
    assert (batch.state, batch.tally.completed, batch.tally.failed) == ("completed", 30, 0)
    output, errors = await service.results(batch_id)
    assert sorted(output) == sorted(ids)
    assert errors == {}
    assert await service.queue.batch_store.open_batches() == ()
