"""What every runner checks of a chunk before it touches memory by it."""

from __future__ import annotations

from headway.engine.errors import InvariantError
from headway.engine.values import Chunk


def check_chunk(chunk: Chunk, *, is_announced: bool, max_model_len: int, block_size: int) -> None:
    """InvariantError for a chunk that no honest plan holds."""
    if not is_announced:
        raise InvariantError(f"{chunk.key} runs in a plan, but was never admitted or is released")
    end = chunk.start + len(chunk.token_ids)
    if not chunk.token_ids or end > max_model_len or end > len(chunk.block_table) * block_size:
        raise InvariantError(
            f"{chunk.key}: a chunk of {len(chunk.token_ids)} tokens ends at {end}; it must hold a token, "
            f"end within {max_model_len} and within its {len(chunk.block_table)} blocks"
        )
