from typing import Any

import pytest

from tests.gateway.conftest import Setting

P2P_ID = "___prefill_addr_10.0.1.2:21001___decode_addr_10.0.1.3:22001_83ad0f"


@pytest.mark.parametrize("tail", ["", "_" * 200])
async def test_a_request_id_of_a_router_for_prefill_and_decode_is_refused(setting: Setting, tail: str) -> None:
    await setting.add_pair()
    for path, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        response = await setting.client.post(path, json=body, headers={"x-request-id": P2P_ID + tail})
        error = response.json()["error"]
        assert response.status_code == 400 and error["param"] == "x-request-id"
        assert error["message"].startswith("x-request-id: got '___prefill_addr_10.0.1.2:21001___decode_addr_")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"max_tokns": 5}, 400),
        ({"max_tokns": 5, "max_tokens": 5}, 200),
        ({"unheard_of": 5}, 200),
        ({"reasoning_effort": "low"}, 200),
    ],
)
async def test_a_misspelt_field_is_refused_and_an_unknown_one_ignored(
    setting: Setting, fields: dict[str, Any], status: int
) -> None:
    await setting.add_pair()
    response = await setting.complete("a", **fields)
    assert response.status_code == status
    if status == 400:
        assert response.json()["error"]["message"] == "max_tokns: unknown field, expected max_tokens"
