"""New grammars that wait to be tried: who is one client, and what becomes of them when it leaves."""

import asyncio
import json
import threading
from pathlib import Path

import pytest

from gateway.generation.grammars.refused import GrammarRefused
from gateway.words.request import Grammar
from protocol.messages_gateway import Role
from tests.byte_grammars import check
from tests.gateway.conftest import Setting, connect, running, wait_until


async def test_what_it_waited_for_is_not_tried_and_others_go_on(setting: Setting) -> None:
    worker = await setting.add(Role.UNIFIED, "u0")
    tried, is_free = list[str](), threading.Event()

    def held(wanted: Grammar) -> str | GrammarRefused:
        tried.append(wanted.source)
        assert is_free.wait(60)
        return check(wanted)

    grammars = setting.gateway.service.grammars
    vars(grammars)["check"] = held
    first = asyncio.create_task(setting.complete("hello", max_tokens=3, guided_regex="[a-z ]{1,9}"))
    await wait_until(lambda: bool(tried))

    body = json.dumps({"prompt": "x", "guided_regex": "b+"})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    _, writer = await connect(setting)
    writer.write(f"{head}\r\n\r\n{body}".encode())
    await wait_until(lambda: bool(grammars._turns._lines))
    writer.close()
    await wait_until(lambda: not grammars._turns._lines)

    is_free.set()
    assert (await first).status_code == 200 and len(worker.assigned) == 1
    assert tried == ["[a-z ]{1,9}"]
    page = (await setting.client.get("/metrics")).text
    assert 'baton_requests_total{model_name="story",outcome="cancelled"} 1.0' in page


@pytest.mark.parametrize("has_keys", (False, True))
async def test_a_client_is_known_by_its_api_key_and_by_its_address_where_none_is_needed(
    folder: Path, tmp_path: Path, has_keys: bool
) -> None:
    """What a client sends in the place of a key that nobody asks for gives it no more turns."""
    keys, is_free = ["a" * 40, "b" * 40], threading.Event()
    path = tmp_path / "keys.txt"
    path.write_text("\n".join(keys))
    path.chmod(0o600)

    def held(wanted: Grammar) -> str | GrammarRefused:
        assert is_free.wait(60)
        return check(wanted)

    async with running(folder, api_key_file=str(path) if has_keys else None) as setting:
        grammars = setting.gateway.service.grammars
        vars(grammars)["check"] = held
        asking = []
        for number, key in enumerate((*keys, *keys)):
            scheme = ("Bearer ", "bearer  ")[number // 2]  # the same key, written in another way
            setting.client.headers["authorization"] = f"{scheme}{key}"
            asking.append(asyncio.create_task(setting.complete(guided_regex="a" * (number + 1))))
            await wait_until(lambda: grammars._turns._is_taken)
            await wait_until(lambda: sum(map(len, grammars._turns._lines.values())) == len(asking) - 1)
        lines = sorted(map(len, grammars._turns._lines.values()))
        is_free.set()
        await asyncio.gather(*asking)
    assert lines == ([1, 2] if has_keys else [3])
