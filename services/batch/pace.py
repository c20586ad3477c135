"""How often to look for answers: often while they come, seldom while they do not."""

from __future__ import annotations


class Pace:
    """A pause between looks that shrinks with every rich look and grows with every empty one."""

    def __init__(self, shortest_seconds: float, longest_seconds: float) -> None:
        self._shortest = shortest_seconds
        self._longest = longest_seconds
        self._pause = shortest_seconds

    def after(self, found: int, looked_at: int) -> float:
        """The pause after a look that found so many of so many (seconds)."""
        if found * 8 >= looked_at:
            self._pause /= 2
        elif not found:
            self._pause *= 1.5
        self._pause = min(max(self._pause, self._shortest), self._longest)
        return self._pause
