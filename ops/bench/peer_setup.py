"""What has to be there before anything is measured: the peers' environments, the model in their formats.

All of it lies in one folder outside the project and is made once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from peer_arms import Peer, is_installed

from headway.engine.checkpoint import open_checkpoint

INSTALL_SECONDS: Final = 3600.0


class SetupError(Exception):
    """A peer, or a form of the model, that cannot be had here; the message says why."""


def install(peer: Peer, home: Path) -> None:
    """Install a peer unless it is there in this version. Raises SetupError with pip's last words."""
    folder, log = home / peer.name, home / f"{peer.name}.log"
    if is_installed(peer, home):
        return
    print(f"installing {peer.requirement} into {folder} (log: {log})", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    python = str(folder / "bin/python")
    commands = [
        [sys.executable, "-m", "venv", str(folder)],
        [python, "-m", "pip", "install", "--progress-bar", "off", *peer.requirement.split()],
    ]
    if peer.unneeded:
        commands.append([python, "-m", "pip", "uninstall", "--yes", *peer.unneeded])
    # Nothing of ours may be seen in there.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("w") as written:
        for command in commands:
            try:
                subprocess.run(
                    command,
                    check=True,
                    stdout=written,
                    stderr=subprocess.STDOUT,
                    env=environment | dict(peer.build_environment),
                    timeout=INSTALL_SECONDS,
                )
            except (OSError, subprocess.SubprocessError) as error:
                last = log.read_text().strip().splitlines()[-1:] or [str(error)]
                raise SetupError(f"{peer.requirement} cannot be installed: {last[0]} (log: {log})") from None
    if peer.alias is not None:
        _write_alias(folder, *peer.alias)
    for links in folder.glob("lib/python*/site-packages/*/bin/_symlinks.json"):
        restore_links(links)
    (folder / "installed").write_text(peer.requirement)


def restore_links(listed: Path) -> None:
    """Make the links by which programs find their libraries: wheels hold none, this one a list."""
    for name, target in json.loads(listed.read_text()).items():
        link = listed.parent / name
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def _write_alias(folder: Path, name: str, version: str) -> None:
    """Make an environment's package known by one more name."""
    (packages,) = folder.glob("lib/python*/site-packages")
    written = packages / f"{name}-{version}.dist-info"
    written.mkdir(exist_ok=True)
    (written / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def weights_for(form: str, source: Path, home: Path) -> Path:
    """The model in a form that an arm reads, made from the GGUF ``source`` where it is not there yet."""
    if form == "gguf":
        return source
    target = home / "models" / f"{source.stem}.{form}"
    if form.startswith("gguf-"):
        target = target.with_suffix(f".{form.removeprefix('gguf-')}.gguf")
    if target.exists():
        return target
    print(f"writing {target}", flush=True)
    unfinished = target.with_name(f"{target.name}.unfinished")
    if unfinished.is_dir():
        shutil.rmtree(unfinished)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    _WRITERS[form](source, unfinished)
    unfinished.replace(target)
    return target


def _write_hugging_face(source: Path, folder: Path) -> None:
    """config.json, weights in bfloat16 and the tokenizer, as the model's own repository has them."""
    import torch
    from safetensors.torch import save_file

    checkpoint = open_checkpoint(source)
    config, tokenizer = checkpoint.config, checkpoint.tokenizer()
    folder.mkdir()
    weights = {name: checkpoint.tensor(name).to(torch.bfloat16).contiguous() for name in checkpoint.names()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    eos = sorted(config.eos_token_ids)
    written = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layer_count,
        "num_attention_heads": config.query_head_count,
        "num_key_value_heads": config.kv_head_count,
        "head_dim": config.head_dim,
        "hidden_act": config.activation,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.theta,
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos,
        "torch_dtype": "bfloat16",
    }
    _write_json(folder / "config.json", written)
    # The library's own form of what the GGUF's metadata describes.
    backend: Any = tokenizer._backend  # type: ignore[attr-defined]  # nobody else needs it
    backend.save(str(folder / "tokenizer.json"))
    end = backend.id_to_token(eos[-1])
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "pad_token": end}
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _gguf_in(kind: gguf.GGMLQuantizationType, *, converts: frozenset[str]) -> Callable[[Path, Path], None]:
    """A writer of the same GGUF with the tensors of these types in another one."""

    def write(source: Path, target: Path) -> None:
        reader = gguf.GGUFReader(source)
        architecture = reader.fields["general.architecture"].contents()
        writer = gguf.GGUFWriter(target, architecture)
        for field in reader.fields.values():
            if not field.name.startswith("GGUF.") and field.name not in _OURS:
                _copy_field(writer, field)
        writer.add_file_type(_FILE_TYPES[kind])
        for tensor in reader.tensors:
            if tensor.tensor_type.name not in converts:
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
                continue
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    return write


_OURS: Final = frozenset({"general.architecture", "general.file_type"})
"""Keys that are not copied but written anew."""
_FILE_TYPES: Final = {
    gguf.GGMLQuantizationType.Q4_0: gguf.LlamaFileType.MOSTLY_Q4_0,
    gguf.GGMLQuantizationType.F16: gguf.LlamaFileType.MOSTLY_F16,
    gguf.GGMLQuantizationType.BF16: gguf.LlamaFileType.MOSTLY_BF16,
}


def _copy_field(writer: gguf.GGUFWriter, field: gguf.ReaderField) -> None:
    kind = field.types[0]
    inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
    if kind in {gguf.GGUFValueType.STRING, gguf.GGUFValueType.ARRAY} and (
        inner in {None, gguf.GGUFValueType.STRING}
    ):
        # As bytes: some tokens are no whole characters, and ``contents`` would fail on them.
        strings = [bytes(field.parts[place]) for place in field.data]
        writer.add_key_value(field.name, strings if inner is not None else strings[0], kind, sub_type=inner)
        return
    writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)


_QUANTIZED: Final = frozenset({"Q4_1", "Q8_0"})
_WRITERS: Final[dict[str, Callable[[Path, Path], None]]] = {
    "hugging-face": _write_hugging_face,
    # The embedding, which is the head as well, stays in Q8_0, as in the file.
    "gguf-q4_0": _gguf_in(gguf.GGMLQuantizationType.Q4_0, converts=frozenset({"Q4_1"})),
    "gguf-bf16": _gguf_in(gguf.GGMLQuantizationType.BF16, converts=_QUANTIZED),
    # OpenVINO reads no bfloat16 GGUF; it turns these into bfloat16 when it compiles the model.
    "gguf-f16": _gguf_in(gguf.GGMLQuantizationType.F16, converts=_QUANTIZED),
}
