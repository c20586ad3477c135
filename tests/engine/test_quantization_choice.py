"""``auto``: the fastest form of weights and KV that was measured within the bound, once for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from tests.engine.test_torch_runner import CONFIG, RandomCheckpoint
from torch import Tensor

from headway.engine.cpu_kernels import KvCacheDType, Quantization
from headway.engine.errors import ModelError
from headway.engine.interfaces import Tokenizer
from headway.engine.quantization_check import (
    Cost,
    ScoringRunner,
    cost_of,
    log_likelihoods,
    text_tokens,
)
from headway.engine.quantization_choice import (
    BFLOAT16,
    FOUR_BIT_FORMS,
    KV_FORMS,
    RECORDED,
    Choice,
    Form,
    Load,
    choose_form,
    forms_of,
    is_beyond,
    is_within,
    quantized,
)
from headway.engine.scripted import ByteTokenizer
from headway.engine.values import StepPlan
from headway.kernels.weight_rows import WeightKind, WeightRows

BLOCKS_OF_32 = replace(CONFIG, hidden_size=64, max_position=600)
VOCAB = 300


@dataclass
class Scored:
    """A runner that says of every token: its log-likelihood is -2, less ``loss``, give or take ``noise``."""

    loss: float = 0.0
    noise: float = 0.0
    block_size: int = 16
    released: list[str] = field(default_factory=list[str])

    def logits(self, plan: StepPlan) -> Tensor:
        [chunk] = plan.chunks
        assert len(chunk.block_table) * self.block_size >= len(chunk.token_ids)
        assert [one.key for one in plan.admitted] == [chunk.key]
        self.released += [key.request_id for key in plan.released]
        generator = torch.Generator().manual_seed(len(self.released))
        known = -2.0 - self.loss + self.noise * torch.randn(len(chunk.token_ids), generator=generator)
        known = known.double().clamp(max=-1e-6)
        out = torch.full((len(chunk.token_ids), VOCAB), -torch.inf, dtype=torch.float64)
        # All that is left to one other token.
        out[:, VOCAB - 1] = torch.log(-torch.expm1(known))
        next_tokens = torch.tensor((*chunk.token_ids[1:], 0)).unsqueeze(1)
        return out.scatter(1, next_tokens, known.unsqueeze(1))


class Checkpoint(RandomCheckpoint):
    """One with a tokenizer, a file, and perhaps 4-bit blocks."""

    def __init__(self, file: Path | None = None, kind: WeightKind | None = WeightKind.Q4_1) -> None:
        super().__init__(BLOCKS_OF_32)
        self._files = [] if file is None else [file]
        self._kind = kind

    def tokenizer(self) -> Tokenizer:
        return ByteTokenizer()

    def files(self) -> list[Path]:
        return self._files

    def blocks(self, name: str) -> WeightRows | None:
        assert name.endswith("down_proj.weight")
        return None if self._kind is None else WeightRows(self._kind, 64, torch.empty(0))


SAME, WORSE = Scored(), Scored(0.5)


def loader(runners: Mapping[Form, ScoringRunner], loaded: list[Form] | None = None) -> Load:
    """Of these, bfloat16 among them."""

    def load(form: Form) -> ScoringRunner:
        if loaded is not None:
            loaded.append(form)
        return {BFLOAT16: Scored(), **runners}[form]

    return load


def choose(
    folder: Path,
    load: Load,
    quantization: Quantization = "auto",
    kv: KvCacheDType = "auto",
    *,
    checkpoint: RandomCheckpoint | None = None,
    is_deterministic: bool = False,
) -> Choice:
    """Of the forms that these settings leave open."""
    checkpoint = checkpoint or Checkpoint(folder / "model.gguf")
    forms = forms_of(checkpoint, quantization, kv, is_deterministic=is_deterministic)
    return choose_form(checkpoint, folder / "cache", load, forms)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ((0.0,), ("q4-int8", "int8")),
        ((-0.5,), ("q4-int8", "int8")),
        ((0.5, 0.0), ("q4-int8", "bf16")),
        ((0.5, 0.5, 0.0), ("q4", "int8")),
        ((0.5, 0.5, 0.5, 0.0), ("q4", "bf16")),
        ((0.5, 0.5, 0.5, 0.5, 0.0), ("int8", "int8")),
        ((0.5, 0.5, 0.5, 0.5, 0.5, 0.0), ("int8", "bf16")),
        ((0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.0), ("none", "int8")),
        ((0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5), ("none", "bf16")),
    ],
)
@pytest.mark.usefixtures("file")
def test_the_fastest_within_the_bound_is_taken(
    losses: Sequence[float], chosen: tuple[Quantization, KvCacheDType], tmp_path: Path
) -> None:
    """Weights and KV together, one pass over the text for each form until one is found."""
    loaded: list[Form] = []
    runners = {form: Scored(loss) for form, loss in zip(forms_of(Checkpoint()), losses, strict=False)}
    choice = choose(tmp_path, loader(runners, loaded))
    assert choice.form == Form(*chosen)
    assert loaded == [BFLOAT16, *runners]
    assert "bfloat16" in choice.reason
    assert choice.reason.startswith(f"{choice.form}: ")
    for form, runner in runners.items():
        assert (f"; {form} +" in choice.reason) == (runner.loss > 0.0), "why it was not taken"


@pytest.mark.parametrize(
    ("quantization", "kv", "asked"),
    [
        ("q4", "auto", [("q4", "int8"), ("q4", "bf16")]),
        ("none", "auto", [("none", "int8"), ("none", "bf16")]),
        ("auto", "bf16", [("q4-int8", "bf16"), ("q4", "bf16"), ("int8", "bf16"), ("none", "bf16")]),
        ("auto", "int8", [("q4-int8", "int8"), ("q4", "int8"), ("int8", "int8"), ("none", "int8")]),
    ],
)
@pytest.mark.usefixtures("file")
def test_what_is_named_is_obeyed_and_what_is_open_is_measured_with_it(
    quantization: Quantization,
    kv: KvCacheDType,
    asked: list[tuple[Quantization, KvCacheDType]],
    tmp_path: Path,
) -> None:
    forms = [Form(*pair) for pair in asked]
    for place, right in enumerate(forms):
        loaded: list[Form] = []
        (tmp_path / "model.gguf").write_text(f"{place}")
        load = loader({form: WORSE if form != right else SAME for form in forms[:-1]}, loaded)
        assert choose(tmp_path, load, quantization, kv).form == right
        assert loaded == [BFLOAT16, *forms[: min(place + 1, len(forms) - 1)]]


@pytest.mark.parametrize("kv", KV_FORMS)
def test_two_names_need_no_measurement(kv: KvCacheDType, tmp_path: Path) -> None:
    loaded: list[Form] = []
    assert choose(tmp_path, loader({}, loaded), "q4", kv) == Choice(Form("q4", kv), "")
    assert loaded == []


@pytest.mark.usefixtures("file")
def test_a_model_is_measured_once(tmp_path: Path) -> None:
    loaded: list[Form] = []
    forms = forms_of(Checkpoint())
    load = loader({form: SAME if form == Form("int8", "int8") else WORSE for form in forms[:-1]}, loaded)
    first = choose(tmp_path, load)
    assert (first.form, len(loaded)) == (Form("int8", "int8"), 6)
    assert choose(tmp_path, load) == first
    assert len(loaded) == 6
    (tmp_path / "model.gguf").write_bytes(b"other weights")
    choose(tmp_path, load)
    assert len(loaded) == 12


@pytest.mark.usefixtures("file")
def test_a_verdict_answers_no_other_question(tmp_path: Path) -> None:
    forms = forms_of(Checkpoint())
    load = loader(dict.fromkeys(forms, SAME))
    questions: list[tuple[Quantization, KvCacheDType, bool]] = [
        ("auto", "auto", False),
        ("auto", "auto", True),
        ("auto", "bf16", False),
        ("int8", "auto", False),
        ("none", "auto", False),
    ]
    told = [
        choose(tmp_path, load, quantization, kv, is_deterministic=is_deterministic).form
        for _ in range(2)  # measured, then read
        for quantization, kv, is_deterministic in questions
    ]
    assert told == 2 * [
        Form("q4-int8", "int8"),
        Form("q4", "int8"),
        Form("q4-int8", "bf16"),
        Form("int8", "int8"),
        Form("none", "int8"),
    ]
    assert len(list((tmp_path / "cache").glob("quantization-*.json"))) == 5


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{}",
        b"[]",
        b"{",
        b'{"quantization": "q2", "kv_cache_dtype": "int8", "reason": ""}',
        b'{"quantization": "q4", "kv_cache_dtype": "int4", "reason": ""}',
        b'{"quantization": "q4", "reason": "of weights alone, as it was once"}',
    ],
)
@pytest.mark.usefixtures("file")
def test_a_verdict_that_cannot_be_read_is_none(damage: bytes, tmp_path: Path) -> None:
    loaded: list[Form] = []
    load = loader({Form("q4-int8", "int8"): SAME}, loaded)
    choose(tmp_path, load)
    [verdict] = (tmp_path / "cache").glob("quantization-*.json")
    verdict.write_bytes(damage)
    assert choose(tmp_path, load).form == Form("q4-int8", "int8")
    assert len(loaded) == 4


@pytest.mark.usefixtures("file")
def test_a_measurement_too_coarse_to_tell_takes_no_form(tmp_path: Path) -> None:
    # On average nothing is lost, but another text could well cost more than a hundredth.
    runners = {form: Scored(noise=3.0) for form in forms_of(Checkpoint())[:-1]}
    choice = choose(tmp_path, loader(runners))
    assert choice.form == BFLOAT16
    assert "cannot be ruled out" in choice.reason


def no_room(form: Form) -> ScoringRunner:
    raise ModelError("not enough memory")


@pytest.mark.usefixtures("file")
def test_where_bfloat16_has_no_room_the_way_out_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"not enough memory; .* --quantization q4"):
        choose(tmp_path, no_room)
    with pytest.raises(ModelError, match=r"not enough memory; .* --quantization int8"):
        choose(tmp_path, no_room, checkpoint=Checkpoint(kind=None))


@pytest.mark.usefixtures("file")
def test_weights_by_name_do_without_a_comparison_that_has_no_room(tmp_path: Path) -> None:
    choice = choose(tmp_path, no_room, "q4")
    assert choice.form == Form("q4", "bf16")
    assert choice.reason.endswith("which cannot be loaded: not enough memory")
    load = loader({Form("q4", "int8"): SAME})
    assert choose(tmp_path, load, "q4").form == Form("q4", "int8"), "nothing was kept: there may be room now"


def test_what_cannot_be_measured_stays_as_it_is(tmp_path: Path) -> None:
    class Mute(Checkpoint):
        def tokenizer(self) -> Tokenizer:
            raise ModelError("no tokenizer here")

    choice = choose(tmp_path, loader({}), checkpoint=Mute())
    assert choice == Choice(BFLOAT16, f"{BFLOAT16}: nothing to measure with: no tokenizer here")


def test_forms_are_what_the_checkpoint_can_be_had_in() -> None:
    assert quantized(Checkpoint(kind=WeightKind.Q4_0)) == ("q4-int8", "q4", "int8")
    assert quantized(Checkpoint(kind=WeightKind.Q8_0)) == ("int8",)
    assert quantized(Checkpoint(kind=None)) == ("int8",)
    odd = RandomCheckpoint(replace(CONFIG, hidden_size=40))
    assert quantized(odd) == ()
    assert forms_of(odd) == (Form("none", "int8"), BFLOAT16)
    assert {form.quantization for form in forms_of(Checkpoint(), is_deterministic=True)} == {
        "q4",
        "int8",
        "none",
    }


def test_weights_that_cannot_be_had_are_not_measured() -> None:
    assert forms_of(Checkpoint(kind=None), "q4") == (Form("q4", "bf16"),)


def test_the_error_of_a_measurement_counts() -> None:
    assert is_within(Cost(0.009, 0.0, 10))
    assert is_within(Cost(0.005, 0.0025, 10))
    assert not is_within(Cost(0.005, 0.003, 10))
    assert not is_beyond(Cost(0.005, 0.003, 10))
    assert not is_beyond(Cost(0.015, 0.003, 10))
    assert not is_within(Cost(0.011, 0.0, 10))
    assert is_beyond(Cost(0.011, 0.0, 10))


def test_a_cost_is_the_ratio_of_two_perplexities() -> None:
    tokens = text_tokens(ByteTokenizer(), 1000)
    assert len(tokens) == 1000
    runner = Scored(noise=0.3)
    scores = log_likelihoods(runner, tokens, window=300)
    assert len(scores) == 1000 - 4
    assert runner.released == ["window-0", "window-1", "window-2"]
    worse = scores - torch.log(torch.tensor(1.02, dtype=torch.float64))
    cost = cost_of(worse, scores)
    assert cost.change == pytest.approx(0.02)
    assert cost.error == pytest.approx(0.0, abs=1e-9)
    assert str(cost) == "+2.00% ± 0.00% over 996 tokens"


def test_a_window_is_scored_by_what_stands_in_it() -> None:
    tokens = text_tokens(ByteTokenizer(), 40)
    [one, other] = [log_likelihoods(Scored(), part) for part in (tokens[:20], tokens[20:])]
    assert torch.equal(log_likelihoods(Scored(), tokens, window=20), torch.cat((one, other)))


@pytest.mark.usefixtures("file")
def test_what_a_short_piece_does_not_decide_the_whole_text_may(tmp_path: Path) -> None:
    # After 4,096 tokens the mean loss is known to 0.6 %, after all of them to 0.15 %.
    loaded: list[Form] = []
    form = Form("q4-int8", "int8")
    choice = choose(tmp_path, loader({form: Scored(noise=0.4)}, loaded))
    assert choice.form == form
    assert loaded == [BFLOAT16, form, BFLOAT16, form]
    assert "over 6" in choice.reason, "69 kB of text, a token each byte"


def test_records_are_of_forms_that_a_checkpoint_can_have() -> None:
    for digest, forms in RECORDED.items():
        assert len(digest) == 24
        assert {form.quantization for form in forms} <= {*FOUR_BIT_FORMS, "none"}
        assert {form.kv_cache_dtype for form in forms} <= set(KV_FORMS)
        assert BFLOAT16 not in forms
