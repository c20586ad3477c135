"""Tiles of a model: measured at first, read at the next start, one rank's for all, none in fixed order."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.engine.fused_rig import CPU, SMALL, RerunGraphs
from tests.engine.reference_launches import reference_launches
from tests.engine.test_torch_runner import CONFIG, RandomCheckpoint
from tests.services.test_ranks import ThreadGroup
from torch import Tensor

from headway.engine.fused_loading import GpuSettings, load_fused_runner
from headway.engine.model_tiles import ChosenTiles, ModelTiles
from headway.engine.product_forms import GpuQuantization
from headway.engine.shard import WHOLE, Shard
from headway.engine.tile_choice import Measure
from headway.engine.tile_record import TileRecord, TileRecordKey
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan
from headway.kernels.attention_plan import AttentionShape
from headway.kernels.launch import DEFAULT_TILE, H100, Launch
from headway.kernels.tile_trials import TileTrial
from headway.kernels.varlen_batch import attention_tile

pytest.importorskip("triton")

KEY = TileRecordKey("a chip", "3.6.0", "code")


class Chip:
    """Tiles of these names take half the time of others."""

    def __init__(self, *fast: str) -> None:
        self._fast = fast
        self.trials: list[str] = []

    def __call__(self, trial: TileTrial) -> Measure:
        self.trials.append(trial.name)
        return lambda tile: 1e-5 if tile in self._fast else 2e-5


def tiles_of(quantization: GpuQuantization = "int8", **changes: object) -> ModelTiles:
    plain = ModelTiles(CONFIG, quantization, None, torch.bfloat16, 16, 32, H100)
    return replace(plain, **changes)  # type: ignore[arg-type]  # fields of it


def choose(
    model: ModelTiles,
    chip: Callable[[TileTrial], Measure],
    record: TileRecord | None = None,
    shard: Shard = WHOLE,
    ticks: Sequence[float] = (),
) -> ChosenTiles:
    times = iter(ticks)
    return model.choose(chip, lambda: next(times, 0.0), record, shard)


def test_a_second_start_reads_what_the_first_one_measured(tmp_path: Path) -> None:
    record = TileRecord(tmp_path, KEY)
    first, second = Chip("wide", "deep"), Chip()
    model = tiles_of()
    chosen = choose(model, first, record)
    count = len(model.trials)
    assert len(first.trials) == count > 10
    assert chosen.origin == f"{count} of {count} measured in 0.0 s, kept in {record.path}"
    again = choose(model, second, record)
    assert second.trials == []
    assert again.names == chosen.names
    assert again.notes == chosen.notes
    assert again.origin == f"{count} read from {record.path}"
    assert any("wide, 0.50 of the default's time" in note for note in again.notes)


def test_another_model_measures_only_what_it_has_of_its_own(tmp_path: Path) -> None:
    record = TileRecord(tmp_path, KEY)
    choose(tiles_of(), Chip("wide"), record)
    chip, wider = Chip("wide"), replace(CONFIG, intermediate_size=2 * CONFIG.intermediate_size)
    choose(tiles_of(config=wider), chip, record)
    assert len(chip.trials) == 2 * 5, "two products in five classes of rows"
    assert choose(tiles_of(), Chip(), record).origin.endswith(f"read from {record.path}")


@pytest.mark.parametrize("content", ["", "[]", '{"choices": {}}', "not JSON"])
def test_a_damaged_record_costs_a_measurement(content: str, tmp_path: Path) -> None:
    record = TileRecord(tmp_path, KEY)
    record.path.write_text(content)
    chip = Chip("wide")
    chosen = choose(tiles_of(), chip, record)
    assert chip.trials
    assert ("is damaged" in chosen.origin) is (content != '{"choices": {}}')
    assert choose(tiles_of(), Chip(), record).names == chosen.names


@pytest.mark.parametrize("time", ["0", "1" + 400 * "0", "1e999", "-3", "NaN"])
def test_an_impossible_time_in_a_record_costs_a_measurement(time: str, tmp_path: Path) -> None:
    record, model = TileRecord(tmp_path, KEY), tiles_of()
    chosen = choose(model, Chip("wide"), record)
    record.path.write_text(record.path.read_text().replace('"default": 20.0', f'"default": {time}'))
    again = Chip("wide")
    assert choose(model, again, record).names == chosen.names
    assert len(again.trials) == len(model.trials)


class Faulty(Chip):
    """Refuses a tile."""

    def __init__(self, refused: str, *fast: str) -> None:
        super().__init__(*fast)
        self._refused = refused

    def __call__(self, trial: TileTrial) -> Measure:
        return partial(self._launch, super().__call__(trial))

    def _launch(self, measure: Measure, tile: str) -> float:
        if tile == self._refused:
            raise RuntimeError("refused")
        return measure(tile)


def test_what_was_chosen_without_a_tile_that_failed_is_measured_again_at_the_next_start(
    tmp_path: Path,
) -> None:
    record, model = TileRecord(tmp_path, KEY), tiles_of()
    first = choose(model, Faulty("narrow", "wide"), record)
    missing = [trial.name for trial in model.trials if "narrow" in trial.tiles]
    assert f"{missing[0]}: narrow cannot be launched (RuntimeError: refused)" in first.notes
    assert first.names[missing[0]] == "wide", "it is served with what is left"
    later = Chip("narrow")
    again = choose(model, later, record)
    assert later.trials == missing
    assert again.names[missing[0]] == "narrow"


def test_a_default_that_fails_is_noted_and_not_tried_at_every_start(tmp_path: Path) -> None:
    record, model = TileRecord(tmp_path, KEY), tiles_of()
    name = model.trials[0].name
    first = choose(model, Faulty(DEFAULT_TILE), record)
    assert f"{name}: default cannot be launched (RuntimeError: refused)" in first.notes
    assert first.origin.startswith(f"0 of {len(model.trials)} measured")
    later = Chip("wide")
    again = choose(model, later, record)
    assert later.trials == []
    assert again.notes[0] == f"{name}: default, which could not be launched when this was to be measured"
    assert set(again.names.values()) == {DEFAULT_TILE}


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_is_measured_with_a_bias_only_if_the_models_has_one(
    has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIG, qkv_bias=has_bias, output_bias=has_bias, mlp_bias=has_bias)
    products = [trial for trial in tiles_of(config=config).trials if "product" in trial.name]
    launched: list[Launch] = []

    def note(launch: Launch) -> None:
        launched.append(launch)

    monkeypatch.setattr(Launch, "run", note)
    for trial in products:
        for prepare in trial.tiles.values():
            prepare(torch.device("meta"), H100).launch()
    assert len(launched) >= 2 * len(products)
    assert {launch.arguments["bias"] is not None for launch in launched} == {has_bias}
    assert {" and a bias, " in trial.name for trial in products} == {has_bias}


def test_a_folder_that_nothing_can_be_written_to_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    chosen = choose(tiles_of(), Chip("wide"), TileRecord(tmp_path / "file", KEY))
    assert "not kept for the next start" in chosen.origin
    assert "wide" in chosen.names.values()


def test_a_recorded_tile_that_is_not_among_todays_is_measured_again(tmp_path: Path) -> None:
    record, model = TileRecord(tmp_path, KEY), tiles_of()
    choose(model, Chip("wide"), record)
    content = json.loads(record.path.read_text())
    name = model.trials[1].name
    content["choices"][name]["tile"] = "gigantic"
    record.path.write_text(json.dumps(content))
    chip = Chip("wide")
    assert choose(model, chip, record).names[name] == "wide"
    assert chip.trials == [name]


def test_what_there_was_no_time_for_keeps_its_default_and_comes_at_the_next_start(tmp_path: Path) -> None:
    record, model = TileRecord(tmp_path, KEY), tiles_of()
    now = iter(range(10_000))
    chosen = model.choose(Chip("wide"), lambda: float(next(now)), record, WHOLE)
    assert 0 < len(chosen.names) < len(model.trials)
    missing = [trial.name for trial in model.trials if trial.name not in chosen.names]
    assert all(chosen.of(trial) == DEFAULT_TILE for trial in model.trials if trial.name in missing)
    later = Chip("wide")
    choose(model, later, record)
    assert later.trials == missing


def test_decodes_of_a_full_batch_come_first_then_chunks() -> None:
    names = [trial.name for trial in tiles_of(max_sequences=32).trials]
    assert names[0].endswith(", decodes")
    rows = [name.rpartition(", ")[2] for name in names[1:]]
    assert list(dict.fromkeys(rows)) == [
        "32 rows", "16 rows", "decodes and a chunk", "512 rows", "128 rows", "64 rows",
    ]  # fmt: skip


def test_products_of_the_vendors_or_with_one_tile_are_not_measured() -> None:
    forms: tuple[GpuQuantization, ...] = ("none", "fp8-w8a8")
    for form in forms:
        model = tiles_of(form)
        assert all("attention" in trial.name for trial in model.trials)
        assert model.products(choose(model, Chip("wide"))) == {}


def test_every_rank_has_what_rank_0_chose_and_only_rank_0_measures_and_reads(tmp_path: Path) -> None:
    record, barrier = TileRecord(tmp_path, KEY), threading.Barrier(2)
    chips, parts, found = (Chip("wide"), Chip("short")), dict[int, Tensor](), dict[int, ChosenTiles]()

    def load(rank: int) -> None:
        shard = Shard(rank, 2, ThreadGroup(rank, parts, barrier))
        found[rank] = choose(tiles_of(), chips[rank], record if rank == 0 else None, shard)

    threads = [threading.Thread(target=load, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert chips[0].trials
    assert chips[1].trials == []
    assert found[0] == found[1]
    assert "wide" in found[1].names.values()


def shape(model: ModelTiles) -> AttentionShape:
    config = model.config
    heads = (config.query_head_count, config.kv_head_count, config.head_dim)
    return AttentionShape(*heads, model.block_size, config.sliding_window, model.dtype, CPU)


def test_chosen_names_become_tiles_of_attention_and_products() -> None:
    model = tiles_of()
    chosen = choose(model, Chip("pair", "tall", "square"))
    tuned = model.attention(shape(model), chosen)
    assert attention_tile(tuned, 1, H100).num_warps == 2
    assert attention_tile(tuned, 200, H100).rows == 128
    products = model.products(chosen)
    assert (CONFIG.hidden_size, CONFIG.intermediate_size) in products
    assert all(set(tiles) == {128, 512} for tiles in products.values()), "square, and tall"
    nothing = ChosenTiles()
    assert model.products(nothing) == {}
    assert model.attention(shape(model), nothing) == shape(model)


PRODUCTS = frozenset({"_matmul_kernel", "_fixed_matmul_kernel", "sum_kernel"})
PLAN_KEY = RequestKey("a", 0)
PLAN = StepPlan(
    0,
    (Chunk(PLAN_KEY, 0, (5, 6, 7), (0,), samples=True),),
    (Admitted(PLAN_KEY, (5, 6, 7), (), Sampling(temperature=0.0)),),
)


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_a_runner_launches_with_the_tiles_that_were_chosen_unless_its_sums_have_an_order(
    is_deterministic: bool,
) -> None:
    model = tiles_of(config=SMALL)
    seen: set[tuple[str, int, int]] = set()

    def spy(launch: Launch) -> None:
        name = str(launch.kernel.fn.__name__)
        if "matmul" in name:
            seen.add((name, int(str(launch.constants["BLOCK_N"])), launch.num_warps))
        run(launch)

    with reference_launches(interpreted=PRODUCTS), pytest.MonkeyPatch.context() as patch:
        run = Launch.run
        patch.setattr(Launch, "run", spy)
        runner = load_fused_runner(
            RandomCheckpoint(SMALL),
            kv_cache_bytes=100_000,
            dtype="bfloat16",
            device="cpu",
            max_model_len=64,
            gpu=GpuSettings("int8", max_sequences=1, is_deterministic=is_deterministic),
            graphs=RerunGraphs(),
            tiles=choose(model, Chip("narrow")),
        )
        seen.clear()
        runner.execute(PLAN)
    assert seen == ({("_fixed_matmul_kernel", 64, 4)} if is_deterministic else {("_matmul_kernel", 32, 2)})
    assert "narrow" in runner.tiles.names.values()
