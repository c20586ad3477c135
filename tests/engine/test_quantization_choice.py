"""``auto`` takes the fastest form that was measured within the bound, once for each model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from tests.engine.test_torch_runner import CONFIG, RandomCheckpoint
from torch import Tensor

from headway.engine.cpu_kernels import Quantization
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
    FOUR_BIT_FORMS,
    RECORDED,
    candidates,
    choose_quantization,
    is_beyond,
    is_within,
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


def loader(
    runners: Mapping[Quantization, ScoringRunner], loaded: list[Quantization]
) -> Callable[[Quantization], ScoringRunner]:
    def load(quantization: Quantization) -> ScoringRunner:
        loaded.append(quantization)
        return runners[quantization]

    return load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ({"q4-int8": 0.0, "q4": 0.0, "int8": 0.0}, "q4-int8"),
        ({"q4-int8": 0.5, "q4": 0.0, "int8": 0.0}, "q4"),
        ({"q4-int8": 0.5, "q4": 0.5, "int8": 0.0}, "int8"),
        ({"q4-int8": 0.5, "q4": 0.5, "int8": 0.5}, "none"),
        ({"q4-int8": -0.5, "q4": 0.0, "int8": 0.0}, "q4-int8"),
    ],
)
def test_the_fastest_within_the_bound_is_taken(
    losses: Mapping[Quantization, float], chosen: str, file: Path, tmp_path: Path
) -> None:
    runners: dict[Quantization, ScoringRunner] = {"none": Scored()}
    runners |= {name: Scored(loss) for name, loss in losses.items()}
    choice = choose_quantization(Checkpoint(file), tmp_path / "cache", loader(runners, []))
    assert choice.quantization == chosen
    assert "against bfloat16" in choice.reason


def test_a_model_is_measured_once(file: Path, tmp_path: Path) -> None:
    loaded: list[Quantization] = []
    load = loader({"none": Scored(), "q4-int8": Scored(0.5), "q4": Scored(0.5), "int8": Scored()}, loaded)
    first = choose_quantization(Checkpoint(file), tmp_path / "cache", load)
    assert (first.quantization, loaded) == ("int8", ["none", "q4-int8", "q4", "int8"])
    again = choose_quantization(Checkpoint(file), tmp_path / "cache", load)
    assert again.quantization == "int8"
    assert first.reason == again.reason
    assert len(loaded) == 4
    file.write_bytes(b"other weights")
    choose_quantization(Checkpoint(file), tmp_path / "cache", load)
    assert len(loaded) == 8


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b'{"quantization": "q2", "reason": ""}', b"{"])
def test_a_verdict_that_cannot_be_read_is_none(damage: bytes, file: Path, tmp_path: Path) -> None:
    loaded: list[Quantization] = []
    load = loader({"none": Scored(), "q4-int8": Scored()}, loaded)
    choose_quantization(Checkpoint(file), tmp_path / "cache", load)
    [verdict] = (tmp_path / "cache").glob("quantization-*.json")
    verdict.write_bytes(damage)
    assert choose_quantization(Checkpoint(file), tmp_path / "cache", load).quantization == "q4-int8"
    assert len(loaded) == 4


def test_a_measurement_too_coarse_to_tell_takes_no_form(file: Path, tmp_path: Path) -> None:
    # On average nothing is lost, but another text could well cost more than a hundredth.
    runners: dict[Quantization, ScoringRunner] = {"none": Scored(), "q4": Scored(noise=3.0)}
    runners["q4-int8"] = runners["int8"] = runners["q4"]
    choice = choose_quantization(Checkpoint(file), tmp_path / "cache", loader(runners, []))
    assert choice.quantization == "none"
    assert "cannot be ruled out" in choice.reason


def test_where_bfloat16_has_no_room_the_way_out_is_told(file: Path, tmp_path: Path) -> None:
    def load(quantization: Quantization) -> ScoringRunner:
        raise ModelError("not enough memory")

    with pytest.raises(ModelError, match=r"not enough memory; .* --quantization q4"):
        choose_quantization(Checkpoint(file), tmp_path, load)


def test_what_cannot_be_measured_stays_as_it_is(tmp_path: Path) -> None:
    class Mute(Checkpoint):
        def tokenizer(self) -> Tokenizer:
            raise ModelError("no tokenizer here")

    choice = choose_quantization(Mute(), tmp_path, loader({}, []))
    assert (choice.quantization, choice.reason) == ("none", "nothing to measure with: no tokenizer here")


def test_candidates_are_what_the_checkpoint_can_be_had_in() -> None:
    assert candidates(Checkpoint(kind=WeightKind.Q4_0)) == ("q4-int8", "q4", "int8")
    assert candidates(Checkpoint(), is_deterministic=True) == ("q4", "int8")
    assert candidates(Checkpoint(kind=WeightKind.Q8_0)) == ("int8",)
    assert candidates(Checkpoint(kind=None)) == ("int8",)
    assert candidates(RandomCheckpoint(replace(CONFIG, hidden_size=40))) == ()


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


def test_what_a_short_piece_does_not_decide_the_whole_text_may(file: Path, tmp_path: Path) -> None:
    # After 4,096 tokens the mean loss is known to 0.6 %, after all of them to 0.15 %.
    loaded: list[Quantization] = []
    load = loader({"none": Scored(), "q4-int8": Scored(noise=0.4)}, loaded)
    choice = choose_quantization(Checkpoint(file), tmp_path / "cache", load)
    assert choice.quantization == "q4-int8"
    assert loaded == ["none", "q4-int8", "none", "q4-int8"]
    assert "over 6" in choice.reason, "69 kB of text, a token each byte"


def test_records_are_of_forms_that_a_checkpoint_can_have() -> None:
    assert all(len(digest) == 24 and set(forms) <= set(FOUR_BIT_FORMS) for digest, forms in RECORDED.items())


def test_deterministic_takes_no_form_that_looks_at_the_number_of_tokens(file: Path, tmp_path: Path) -> None:
    runners: dict[Quantization, ScoringRunner] = {"none": Scored(), "q4-int8": Scored(), "q4": Scored()}
    load, folder = loader(runners, []), tmp_path / "cache"
    assert choose_quantization(Checkpoint(file), folder, load).quantization == "q4-int8"
    for _ in range(2):  # measured, then read
        choice = choose_quantization(Checkpoint(file), folder, load, is_deterministic=True)
        assert choice.quantization == "q4"
