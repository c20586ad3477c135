"""The tiles of one model on one chip: what there is to measure, who measures it, and what it ends with.

    rank 0        the record ─► trials that it lacks, measured ─► the record
                     └──────────── names of tiles ─────────────┐
    every rank    products and attention of the model ◄────────┘   the other ranks wait, and read no file

Not with ``--deterministic``: there the order of sums, which tiles decide, may not depend on a measurement.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

import torch

from headway.engine import tile_choice, tile_stopwatch
from headway.engine.model_config import ModelConfig
from headway.engine.product_forms import GpuQuantization, ProductTiles
from headway.engine.shard import Shard
from headway.engine.tile_choice import Begin, Choice, choose_tiles
from headway.engine.tile_record import TileRecord, TileRecordKey
from headway.kernels import (
    attention_cases,
    attention_tiles,
    launch,
    matmul_cases,
    matmul_tiles,
    scaled_matmul,
    split_merge,
    tile_trials,
    varlen_attention,
    varlen_batch,
)
from headway.kernels.attention_cases import Heads
from headway.kernels.attention_plan import AttentionShape
from headway.kernels.eight_bits import EightBits
from headway.kernels.launch import DEFAULT_TILE, Chip
from headway.kernels.matmul_cases import Kind
from headway.kernels.matmul_tiles import ROW_CLASSES, row_class
from headway.kernels.tile_trials import CHUNK, DECODES, TileTrial, attention_trial, matmul_trial

KINDS: Final[dict[GpuQuantization, Kind]] = {"int8": "W8", "fp8": "F8", "int8-w8a8": "W8A8"}
"""Products of ours with several tiles. bf16 is the vendors', who choose tiles of their own; so is fp8 by fp8
where their libraries take it, and elsewhere (``NarrowLinear``) it is ours with one tile."""
X_BYTES: Final[dict[Kind, int]] = {"W8": 2, "F8": 2, "W8A8": 1}
MEASURED_CODE: Final = tuple(
    Path(str(module.__file__))
    for module in (
        attention_cases, attention_tiles, launch, matmul_cases, matmul_tiles, scaled_matmul, split_merge,
        tile_trials, varlen_attention, varlen_batch, tile_choice, tile_stopwatch,
    )
)  # fmt: skip
"""What a choice follows from; a change in any of them measures anew."""


@dataclass(frozen=True, slots=True)
class ChosenTiles:
    """Names of tiles, by trial; a trial that is not there keeps its default."""

    names: Mapping[str, str] = field(default_factory=dict[str, str])
    origin: str = ""
    """Where they are from, in words: for the log. Empty: nothing was asked."""
    notes: tuple[str, ...] = ()
    """What is other than by default, or could not be launched."""

    def of(self, trial: TileTrial) -> str:
        """The trial's."""
        name = self.names.get(trial.name, DEFAULT_TILE)
        return name if name in trial.tiles else DEFAULT_TILE


@dataclass(frozen=True, slots=True)
class ModelTiles:
    """What of a model has several tiles; sizes are one rank's."""

    config: ModelConfig
    quantization: GpuQuantization
    quantized_cache: EightBits | None
    dtype: torch.dtype
    block_size: int
    max_sequences: int
    chip: Chip

    @property
    def trials(self) -> tuple[TileTrial, ...]:
        """Those with something to choose from: full steps of decodes first, then chunks, then the rest."""
        most = row_class(self.max_sequences)
        decodes = [rows for rows in reversed(ROW_CLASSES) if rows <= most]
        others = [rows for rows in reversed(ROW_CLASSES) if rows > most]
        trials = (
            self._decode_trial,
            *(self._product_trial(shape, rows) for rows in decodes for shape in self._shapes),
            self._chunk_trial,
            *(self._product_trial(shape, rows) for rows in others for shape in self._shapes),
        )
        return tuple(trial for trial in trials if trial.is_open)

    def products(self, chosen: ChosenTiles) -> ProductTiles:
        """By the weight's shape and the class of rows: the tiles that are not the default."""
        found: dict[tuple[int, int], dict[int, scaled_matmul.MatmulTile]] = {}
        for shape in self._shapes:
            for rows in ROW_CLASSES:
                name = chosen.of(self._product_trial(shape, rows))
                if name != DEFAULT_TILE:
                    tiles = matmul_tiles.matmul_tiles(rows, X_BYTES[KINDS[self.quantization]], self.chip)
                    found.setdefault(shape, {})[rows] = tiles[name]
        return found

    def attention(self, shape: AttentionShape, chosen: ChosenTiles) -> AttentionShape:
        """The shape, which names its tiles."""
        return replace(
            shape, decode_tile=chosen.of(self._decode_trial), prefill_tile=chosen.of(self._chunk_trial)
        )

    def choose(
        self, begin: Begin, clock: Callable[[], float], record: TileRecord | None, shard: Shard
    ) -> ChosenTiles:
        """Ask the record, or the chip, once for all ranks."""
        message = json.loads(shard.decided(lambda: _decided(self.trials, begin, clock, record)))
        return ChosenTiles(message["names"], message["origin"], tuple(message["notes"]))

    @property
    def _shapes(self) -> dict[tuple[int, int], bool]:
        """[outputs, inputs] of the layers' products, and whether one of that shape has a bias.

        None where there is one tile, or the vendors'. Of several ranks the first adds the bias of a sum, and
        what it measures is everybody's.
        """
        if self.quantization not in KINDS:
            return {}
        config = self.config
        width, inner = config.hidden_size, config.intermediate_size
        queries, keys = (count * config.head_dim for count in (config.query_head_count, config.kv_head_count))
        found: dict[tuple[int, int], bool] = {}
        for shape, has_bias in (
            ((queries + 2 * keys, width), config.qkv_bias),
            ((width, queries), config.output_bias),
            ((2 * inner, width), config.mlp_bias),
            ((width, inner), config.mlp_bias),
        ):
            found[shape] = found.get(shape, False) or has_bias
        return found

    def _product_trial(self, shape: tuple[int, int], rows: int) -> TileTrial:
        has_bias = self._shapes[shape]
        return matmul_trial(KINDS[self.quantization], rows, *shape, self.chip, has_bias=has_bias)

    @property
    def _decode_trial(self) -> TileTrial:
        return attention_trial(self._heads, DECODES, self.quantized_cache, self.chip)

    @property
    def _chunk_trial(self) -> TileTrial:
        return attention_trial(self._heads, CHUNK, self.quantized_cache, self.chip)

    @property
    def _heads(self) -> Heads:
        config = self.config
        return Heads(
            "the model's", config.query_head_count, config.kv_head_count, config.head_dim,
            sliding_window=config.sliding_window, dtype=self.dtype, block_size=self.block_size,
        )  # fmt: skip


def record_in(folder: str | None, device: torch.device) -> TileRecord | None:
    """The record of this GPU, with this compiler and these kernels; None: there is no folder for it."""
    if folder is None:
        return None
    code = hashlib.sha256(b"".join(path.read_bytes() for path in MEASURED_CODE)).hexdigest()[:16]
    key = TileRecordKey(torch.cuda.get_device_name(device), version("triton"), code)
    return TileRecord(Path(folder), key)


def _decided(
    trials: tuple[TileTrial, ...], begin: Begin, clock: Callable[[], float], record: TileRecord | None
) -> bytes:
    """``ChosenTiles``, in JSON."""
    origin: list[str] = []
    known = _known(record, origin)
    held = {trial.name: known[trial.name] for trial in trials if _is_valid(trial, known)}
    missing = [trial for trial in trials if trial.name not in held]
    if held and record is not None:
        origin.append(f"{len(held)} read from {record.path}")
    measured: dict[str, Choice] = {}
    if missing:
        started = clock()
        measured = choose_tiles(missing, begin, clock)
        count = sum(bool(choice.seconds) for choice in measured.values())
        origin.append(f"{count} of {len(missing)} measured in {clock() - started:.1f} s")
    settled = {name: choice for name, choice in measured.items() if choice.is_settled}
    if settled and record is not None:
        origin.append(_kept(record, settled))
    choices = {**held, **measured}
    names = {name: choice.tile for name, choice in choices.items()}
    notes = [note for name, choice in choices.items() for note in _notes(name, choice)]
    return json.dumps(asdict(ChosenTiles(names, ", ".join(origin), tuple(notes)))).encode()


def _known(record: TileRecord | None, origin: list[str]) -> dict[str, Choice]:
    try:
        return {} if record is None else record.read()
    except (OSError, ValueError) as error:
        origin.append(str(error))
        return {}


def _is_valid(trial: TileTrial, known: Mapping[str, Choice]) -> bool:
    return trial.name in known and known[trial.name].tile in trial.tiles


def _kept(record: TileRecord, settled: Mapping[str, Choice]) -> str:
    try:
        record.add(settled)
    except OSError as error:
        return f"not kept for the next start ({error})"
    return f"kept in {record.path}"


def _notes(trial: str, choice: Choice) -> list[str]:
    notes = [f"{trial}: {tile} cannot be launched ({why})" for tile, why in choice.failed.items()]
    if not choice.seconds and not choice.failed:
        notes.append(f"{trial}: {choice.tile}, which could not be launched when this was to be measured")
    if choice.tile != DEFAULT_TILE and {choice.tile, DEFAULT_TILE} <= choice.seconds.keys():
        share = choice.seconds[choice.tile] / choice.seconds[DEFAULT_TILE]
        notes.append(f"{trial}: {choice.tile}, {share:.2f} of the default's time")
    return notes
