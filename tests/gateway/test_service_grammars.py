"""A client that leaves while its new grammar waits to be tried."""

import asyncio
import json
import threading
from urllib.parse import urlsplit

from gateway.grammars import Asked
from protocol.errors import BadRequest
from protocol.messages_gateway import Role
from tests.byte_grammars import check
from tests.gateway.conftest import Setting, wait_until


async def test_what_it_waited_for_is_not_tried_and_others_go_on(setting: Setting) -> None:
    worker = await setting.add(Role.UNIFIED, "u0")
    tried, is_free = list[str](), threading.Event()

    def held(wanted: Asked) -> str | BadRequest:
        tried.append(wanted.source)
        assert is_free.wait(60)
        return check(wanted)

    grammars = setting.gateway.service.grammars
    vars(grammars)["check"] = held
    first = asyncio.create_task(setting.complete("hello", max_tokens=3, guided_regex="[a-z ]{1,9}"))
    await wait_until(lambda: bool(tried))

    body = json.dumps({"prompt": "x", "guided_regex": "b+"})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    where = urlsplit(setting.gateway.url)
    _, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(f"{head}\r\n\r\n{body}".encode())
    await wait_until(lambda: bool(grammars._turns._lines))
    writer.close()
    await wait_until(lambda: not grammars._turns._lines)

    is_free.set()
    assert (await first).status_code == 200 and len(worker.assigned) == 1
    assert tried == ["[a-z ]{1,9}"]
    page = (await setting.client.get("/metrics")).text
    assert 'baton_requests_total{model_name="story",outcome="cancelled"} 1.0' in page
