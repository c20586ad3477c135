"""Which kind of target a URL names."""

from __future__ import annotations

from headway.services.bench.native_target import NativeTarget
from headway.services.bench.openai_target import OpenAiTarget
from headway.services.bench.settings import BenchSettings
from headway.services.bench.target import Target


def make_target(settings: BenchSettings) -> Target:
    """An HTTP server, or Headway's own queue. Raises UsageError for a URL of neither."""
    return NativeTarget(settings) if settings.is_native else OpenAiTarget(settings)
