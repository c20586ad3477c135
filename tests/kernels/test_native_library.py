"""The native library is compiled once, whatever starts at the same time, and says what is missing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headway.kernels import native_library
from headway.kernels.native_library import (
    NativeUnavailableError,
    find_compiler,
    install_native,
    load_native,
    main,
)

EXTENSION = re.compile(
    r"^#define __(AVX2|AVX512\w+|AMX\w+|FMA|F16C|BMI2|LZCNT|MOVBE|VAES|GFNI|SHA)__ 1$", re.MULTILINE
)
"""What a compiler may use, as it tells it; older extensions than AVX2 come with these."""
SEVEN = 'extern "C" int seven() { return 7; }\n'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library of one line, for any CPU."""
    try:
        find_compiler(native_library.COMPILERS)
    except NativeUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "seven.cpp").write_text(SEVEN)
    monkeypatch.setattr(native_library, "SOURCES", folder)
    monkeypatch.setattr(native_library, "FEATURES", ())
    monkeypatch.setattr(native_library, "FLAGS", ("-shared", "-fPIC"))  # runs on any CPU
    return folder


def test_the_first_use_compiles_and_the_second_needs_no_compiler_run(sources: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert load_native(cache).seven() == 7
    (made,) = cache.iterdir()
    before = made.stat().st_mtime_ns
    assert load_native(cache).seven() == 7
    assert [path.stat().st_mtime_ns for path in cache.iterdir()] == [before]


def test_changed_sources_are_another_library(sources: Path, tmp_path: Path) -> None:
    assert load_native(tmp_path / "cache").seven() == 7
    (sources / "seven.cpp").write_text(SEVEN.replace("7;", "8;"))
    assert load_native(tmp_path / "cache").seven() == 8
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_an_installed_library_is_taken_and_needs_neither_a_compiler_nor_a_cache(
    sources: Path, tmp_path: Path
) -> None:
    installed = tmp_path / "installed"
    made = install_native(installed)
    cache = tmp_path / "cache"
    assert load_native(cache, compilers=(), installed=installed).seven() == 7
    assert not cache.exists()
    assert list(installed.iterdir()) == [made]


def test_an_installed_library_of_other_sources_is_left_alone(sources: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    install_native(installed)
    (sources / "seven.cpp").write_text(SEVEN.replace("7;", "8;"))
    assert load_native(tmp_path / "cache", installed=installed).seven() == 8


def test_installing_prints_the_path_or_the_reason(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "made")]) == 0
    (made,) = (tmp_path / "made").iterdir()
    assert capsys.readouterr().out == f"{made}\n"
    (sources / "seven.cpp").write_text("int broken( { return 0; }\n")
    assert main([str(tmp_path / "made")]) == 1
    assert "could not compile" in capsys.readouterr().err


def test_the_flags_allow_no_instructions_but_those_that_are_asked_of_the_cpu() -> None:
    if platform.machine() != "x86_64":
        pytest.skip("not x86-64")
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    flags = [flag for flag in native_library.FLAGS if flag.startswith("-m")]
    command = ["g++", *flags, "-dM", "-E", "-x", "c++", os.devnull]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    allowed = {name.lower().replace("lzcnt", "abm") for name in EXTENSION.findall(text)}
    assert {"avx512f", "avx512bf16", "fma"} <= allowed
    assert allowed <= {feature.replace("_", "") for feature in native_library.FEATURES}


def test_processes_that_start_together_all_get_the_library_and_leave_one_file(
    sources: Path, tmp_path: Path
) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from headway.kernels import native_library as n\n"
        "n.SOURCES, n.FEATURES, n.FLAGS = Path(sys.argv[1]), (), ('-shared', '-fPIC')\n"
        "print(n.load_native(Path(sys.argv[2])).seven())"
    )
    command = [sys.executable, "-c", program, str(sources), str(tmp_path / "cache")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0] for process in started] == ["7\n"] * 3
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_without_a_compiler_the_message_says_what_to_install(sources: Path, tmp_path: Path) -> None:
    with pytest.raises(NativeUnavailableError, match=r"no C\+\+ compiler .* install one .*g\+\+"):
        load_native(tmp_path / "cache", compilers=("no-such-compiler",))


def test_a_cpu_without_the_instructions_is_told_by_their_names(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_library, "FEATURES", ("avx512f", "flux_capacitor"))
    with pytest.raises(NativeUnavailableError, match=r"this CPU has no .*flux_capacitor"):
        load_native(tmp_path / "cache")


def test_a_machine_without_cpuinfo_has_no_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library, "CPU_FACTS", tmp_path / "cpuinfo")
    assert native_library.cpu_features() == frozenset()
    (tmp_path / "cpuinfo").write_text("Processor\t: ARMv8\nFeatures\t: asimd\n")
    assert native_library.cpu_features() == frozenset()


def test_sources_that_do_not_compile_tell_the_first_error_and_leave_nothing(
    sources: Path, tmp_path: Path
) -> None:
    (sources / "broken.cpp").write_text("int broken( { return 0; }\n")
    with pytest.raises(NativeUnavailableError, match=r"could not compile .*broken\.cpp:1"):
        load_native(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_folder_that_cannot_be_made_is_named(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(NativeUnavailableError, match=r"cache folder .* cannot be written"):
        load_native(tmp_path / "cache")


def test_a_damaged_library_says_to_remove_it(sources: Path, tmp_path: Path) -> None:
    load_native(tmp_path / "good")
    (made,) = (tmp_path / "good").iterdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / made.name).write_bytes(b"not a library")
    with pytest.raises(NativeUnavailableError, match=r"cannot be loaded .*; remove it"):
        load_native(tmp_path / "cache")
