"""Packed weights on disk: the same model as from the checkpoint, whatever happened to the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from tests.engine.test_native_model import MODELS, Sequences
from tests.engine.test_torch_runner import RandomCheckpoint
from tests.native_kernels import CACHE_DIR, native_library

from headway.engine import weight_cache
from headway.engine.cpu_kernels import CpuSettings, Quantization
from headway.engine.kv_cache import KVCache
from headway.engine.model_config import ModelConfig
from headway.engine.native_model import NativeModel
from headway.engine.torch_runner import TorchRunner
from headway.engine.weight_cache import ABANDONED_SECONDS, LoadedWeights, WeightSource, load_cached_weights
from headway.engine.whole_file import BEGUN

CONFIG = MODELS["llama, biases, own head"]


class StoredCheckpoint(RandomCheckpoint):
    """A checkpoint with a file to its name."""

    def __init__(self, config: ModelConfig, file: Path) -> None:
        super().__init__(config)
        self._file = file

    def files(self) -> list[Path]:
        return [self._file]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.bin"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def source(
    file: Path,
    config: ModelConfig = CONFIG,
    quantization: Quantization = "none",
    dtype: torch.dtype = torch.bfloat16,
) -> WeightSource:
    checkpoint = StoredCheckpoint(config, file)
    return WeightSource(native_library(), checkpoint, config.max_position, quantization, dtype, threads=1)


def logits(source: WeightSource, loaded: LoadedWeights) -> list[torch.Tensor]:
    """What the loaded model computes."""
    config = source.checkpoint.config
    cache = KVCache(config, block_count=150, block_size=16, dtype=source.dtype, device=torch.device("cpu"))
    model = NativeModel(source.library, loaded.model, cache, 1)
    runner = TorchRunner(
        config,
        model,
        cache,
        dtype=source.dtype,
        device=torch.device("cpu"),
        max_model_len=config.max_position,
        clock=lambda: 0.0,
    )
    return Sequences(runner).all()


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("weights-*"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("name", ["llama, biases, own head", "qwen3", "llama"])
def test_a_mapped_model_computes_the_same_bits(
    name: str, quantization: Quantization, dtype: torch.dtype, file: Path, folder: Path
) -> None:
    made_of = source(file, MODELS[name], quantization, dtype)
    expected = logits(made_of, load_cached_weights(made_of, None))
    for words in ("made in", "mapped from"):
        loaded = load_cached_weights(made_of, folder)
        assert words in loaded.place
        for wanted, got in zip(expected, logits(made_of, loaded), strict=True):
            assert torch.equal(wanted, got)
    assert len(kept(folder)) == 1


@pytest.mark.parametrize("damage", ["a byte", "cut off", "empty"])
def test_a_damaged_file_is_noticed_and_made_anew(damage: str, file: Path, folder: Path) -> None:
    made_of = source(file)
    load_cached_weights(made_of, folder)
    [path] = kept(folder)
    content = path.read_bytes()
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    path.write_bytes({"a byte": bytes(changed), "cut off": content[:-100], "empty": b""}[damage])
    assert "the one there was damaged" in load_cached_weights(made_of, folder).place
    assert path.read_bytes() == content
    assert "made in" not in load_cached_weights(made_of, folder).place


def test_other_contents_and_forms_have_files_of_their_own(file: Path, folder: Path) -> None:
    load_cached_weights(source(file), folder)
    load_cached_weights(source(file, quantization="int8"), folder)
    load_cached_weights(source(file, dtype=torch.float32), folder)
    assert len(kept(folder)) == 3
    file.write_bytes(b"changed")
    load_cached_weights(source(file), folder)
    assert len(kept(folder)) == 4


def test_what_other_code_packed_goes_when_new_files_come(
    file: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_cached_weights(source(file), folder)
    load_cached_weights(source(file, quantization="int8"), folder)
    [one, other] = kept(folder)
    changed = tmp_path / "packing.py"
    changed.write_text("other code")
    monkeypatch.setattr(weight_cache, "PACKING_CODE", (changed,))
    load_cached_weights(source(file), folder)
    left = kept(folder)
    assert len(left) == 2
    assert len({one, other} & set(left)) == 1, "the int8 file may still be of use"


def test_what_a_killed_process_left_is_never_taken_and_goes(file: Path, folder: Path) -> None:
    folder.mkdir()
    abandoned, begun = folder / f"{BEGUN}old", folder / f"{BEGUN}new"
    for path in (abandoned, begun):
        path.write_bytes(b"half of it")
    long_ago = begun.stat().st_mtime - 2 * ABANDONED_SECONDS
    os.utime(abandoned, (long_ago, long_ago))
    assert "made in" in load_cached_weights(source(file), folder).place
    assert not abandoned.exists()
    assert begun.exists(), "somebody may be writing it"


@pytest.mark.parametrize("trouble", ["no folder", "no room", "no right"])
def test_without_a_place_the_weights_stay_in_memory(
    trouble: str, file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_of = source(file)
    expected = logits(made_of, load_cached_weights(made_of, None))
    if trouble == "no folder":
        folder.write_bytes(b"a file where the folder should be")
    elif trouble == "no room":
        monkeypatch.setattr("shutil.disk_usage", full_disk)
    else:
        monkeypatch.setattr(weight_cache, "write_whole", refuse)
    loaded = load_cached_weights(made_of, folder)
    assert loaded.place.startswith("in memory: nothing can be kept")
    for wanted, got in zip(expected, logits(made_of, loaded), strict=True):
        assert torch.equal(wanted, got)


class FullDisk:
    """What ``shutil.disk_usage`` says of one."""

    free = 10


def full_disk(path: Path) -> FullDisk:
    assert path.is_dir()
    return FullDisk()


def refuse(path: Path, write: object) -> None:
    """As the system does in a folder of somebody else's."""
    raise PermissionError(13, "Permission denied")


def test_the_runner_says_where_its_weights_are(file: Path) -> None:
    native_library()
    checkpoint = StoredCheckpoint(CONFIG, file)

    def load(*, keeps_weights: bool) -> TorchRunner:
        cpu = CpuSettings("native", "none", CACHE_DIR, keeps_weights=keeps_weights, kv_cache_dtype="bf16")
        return TorchRunner.load(checkpoint, dtype="bfloat16", kv_cache_bytes=1 << 20, cpu=cpu)

    assert load(keeps_weights=True).weights.startswith(f"mapped from {CACHE_DIR}")
    assert load(keeps_weights=False).weights == "in memory"
