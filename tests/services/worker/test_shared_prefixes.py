"""What the operator lets all tenants share is shared, as a prompt's start and as a system message."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.engine.scripted import ByteTokenizer
from headway.engine.values import RequestSpec, Sampling
from headway.services.errors import UsageError
from headway.services.model_host import build_engine
from headway.services.settings import WorkerSettings
from headway.services.shared_prefixes import read_shared_prefixes

TOKENIZER = ByteTokenizer()
SYSTEM = "You answer in one short sentence, in plain words that everybody knows."


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "system.txt"
    path.write_text(SYSTEM)
    return path


def test_a_file_covers_plain_prompts_and_chats_up_to_the_users_words(file: Path) -> None:
    plain, chat = read_shared_prefixes([file], TOKENIZER)
    assert plain == TOKENIZER.encode(SYSTEM, add_special_tokens=True)
    rendered = TOKENIZER.render_chat(
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "secret"}]
    )
    assert rendered[: len(chat)] == chat
    assert len(chat) > len(SYSTEM) - 1
    assert "secret" not in "".join(map(chr, chat))


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe\xff"])
def test_a_file_without_text_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"bad\.txt"):
        read_shared_prefixes([path], TOKENIZER)
    with pytest.raises(UsageError, match="missing"):
        read_shared_prefixes([tmp_path / "missing"], TOKENIZER)


@pytest.mark.parametrize("is_shared", [True, False])
def test_another_tenant_hits_only_what_is_shared(file: Path, is_shared: bool) -> None:
    settings = WorkerSettings(model="scripted", shared_prefixes=(file,) if is_shared else ())
    engine = build_engine(settings).engine
    prompt = TOKENIZER.encode(SYSTEM + " Who is it?", add_special_tokens=True)
    for at, tenant in enumerate(("acme", "umbrella")):
        engine.add(RequestSpec(tenant, 1, prompt, Sampling(temperature=0.0), 2, tenant=tenant))
        while engine.has_work:
            engine.step(float(at))
    hits = engine.load.extra["prefix_hit_tokens"]
    assert hits == (len(SYSTEM) // settings.block_size * settings.block_size if is_shared else 0)
