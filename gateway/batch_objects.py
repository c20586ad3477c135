"""Batches as OpenAI shows them."""

from __future__ import annotations

from headway.queueing.batch import Batch, Tally


def batch_object(batch: Batch) -> dict[str, object]:
    """OpenAI's batch; times are seconds since the epoch, null where it has not come to that."""
    asked, outcome, checked = batch.asked, batch.outcome, batch.checked
    ended = None if outcome is None else outcome.at_ms // 1000
    state = batch.state.value
    was_cancelled = state in {"cancelling", "cancelled"}
    return {
        "id": asked.batch_id,
        "object": "batch",
        "endpoint": asked.endpoint,
        "model": None if checked is None else checked.model,
        "errors": _faults(batch),
        "input_file_id": asked.input_file_id,
        "completion_window": asked.window,
        "status": state,
        "output_file_id": None if outcome is None else outcome.output_file_id,
        "error_file_id": None if outcome is None else outcome.error_file_id,
        "created_at": asked.created_ms // 1000,
        "in_progress_at": None if checked is None else checked.at_ms // 1000,
        "expires_at": asked.expires_ms // 1000,
        "finalizing_at": batch.finalizing_ms // 1000 or None,
        "completed_at": ended if state == "completed" else None,
        "failed_at": ended if state == "failed" else None,
        "expired_at": ended if state == "expired" else None,
        "cancelling_at": batch.cancelling_ms // 1000 if was_cancelled else None,
        "cancelled_at": ended if state == "cancelled" else None,
        "request_counts": {
            "total": 0 if checked is None else checked.lines,
            "completed": batch.tally.completed,
            "failed": batch.tally.failed,
        },
        "usage": _usage(batch.tally),
        "metadata": asked.metadata,
    }


def _faults(batch: Batch) -> dict[str, object] | None:
    if batch.outcome is None or not batch.outcome.faults:
        return None
    found = [
        {"code": fault.code, "message": fault.message, "line": fault.line, "param": fault.param}
        for fault in batch.outcome.faults
    ]
    return {"object": "list", "data": found}


def _usage(tally: Tally) -> dict[str, object]:
    return {
        "input_tokens": tally.prompt_tokens,
        "input_tokens_details": {"cached_tokens": tally.cached_tokens},
        "output_tokens": tally.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tally.prompt_tokens + tally.completion_tokens,
    }
