"""A gateway with --api-key-file and --allowed-origins."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app.app import build_app
from testkit.fake_worker import Behaviour
from tests.gateway.conftest import Setting, running

KEYS = ("key-one", "key-two")
PAGE = "https://app.example.com"


@pytest.fixture
async def locked(folder: Path, tmp_path: Path) -> AsyncIterator[Setting]:
    """A gateway with two keys, for pages of one origin."""
    path = tmp_path / "api-keys"
    path.write_text("# ours\nkey-one\n\n  key-two  \n")
    path.chmod(0o600)
    async with running(folder, api_key_file=str(path), allowed_origins=(PAGE,)) as found:
        yield found


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_every_route_but_health_wants_a_key(locked: Setting) -> None:
    await locked.add_pair()
    app = build_app(locked.gateway.service)
    routes = [(route.path, method) for route in app.routes for method in route.methods]  # type: ignore[attr-defined]
    assert {"/v1/completions", "/metrics", "/workers", "/"} <= {path for path, _ in routes}
    routes += [("/nowhere", "GET"), ("/v1/models/", "HEAD"), ("//health", "GET"), ("/health/x", "GET")]
    for path, method in routes:
        response = await locked.client.request(method, path.replace("{name:path}", "story"))
        assert response.status_code == (200 if path == "/health" else 401), (method, path)
    for path in ("/health", "/health/"):
        assert (await locked.client.get(path)).status_code == 200


async def test_the_refusal_has_the_shape_that_clients_know(locked: Setting) -> None:
    response = await locked.complete("x")
    assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "invalid_api_key")
    assert response.headers["x-request-id"].startswith("req-")
    metrics = (await locked.client.get("/metrics", headers=bearer("key-one"))).text
    assert 'baton_http_responses_total{model_name="story",status="401"} 1.0' in metrics


async def test_each_key_opens_and_nothing_else_does(locked: Setting) -> None:
    await locked.add_pair()
    body = {"prompt": "x", "max_tokens": 2}
    for value in (f"{scheme} {key}" for scheme in ("Bearer", "bearer") for key in KEYS):
        opened = await locked.client.post("/v1/completions", json=body, headers={"authorization": value})
        assert opened.status_code == 200, value
    no_keys = [
        "",
        "Bearer",
        "key-one",
        "Basic key-one",
        *(f"Bearer {each}" for each in ("key-on", "key-one2", "# ours", "é")),
    ]
    for headers in (*([each] for each in no_keys), [f"Bearer {key}" for key in KEYS]):
        given = [(b"authorization", each.encode("latin-1")) for each in headers]
        assert (await locked.client.get("/v1/models", headers=given)).status_code == 401, headers


async def test_every_key_is_compared_whichever_is_right(locked: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def noting(found: bytes, known: bytes) -> bool:
        compared.append(known)
        assert len(found) == len(known)
        return found == known

    monkeypatch.setattr("gateway.http.protocol.hmac.compare_digest", noting)
    for key, status in (("key-one", 200), ("key-two", 200), ("k", 401)):
        compared.clear()
        assert (await locked.client.get("/v1/models", headers=bearer(key))).status_code == status
        assert len(set(compared)) == len(KEYS), key


PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type",
}


async def test_a_browser_may_ask_without_a_key_and_then_comes_with_one(locked: Setting) -> None:
    await locked.add_pair(Behaviour(burst=2))
    allowed = await locked.client.options("/v1/completions", headers=PREFLIGHT)
    assert allowed.status_code == 200 and allowed.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
    body: dict[str, Any] = {"prompt": "x", "max_tokens": 3, "stream": True}
    headers = {"origin": PAGE, **bearer("key-two")}
    answer = await locked.client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-expose-headers"] == "x-request-id"
    refused = await locked.client.post("/v1/completions", json=body, headers={"origin": PAGE})
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == PAGE


async def test_pages_of_other_origins_may_not(locked: Setting, setting: Setting) -> None:
    refused = await locked.client.options("/v1/completions", headers=PREFLIGHT | {"origin": "https://evil.example"})
    assert refused.status_code == 400
    answer = await locked.client.get("/v1/models", headers={"origin": "https://evil.example", **bearer("key-one")})
    assert "access-control-allow-origin" not in answer.headers
    closed = await setting.client.get("/v1/models", headers={"origin": PAGE})  # without the option
    assert closed.status_code == 200 and "access-control-allow-origin" not in closed.headers


async def test_any_origin(folder: Path) -> None:
    async with running(folder, allowed_origins=("*",)) as found:
        answer = await found.client.get("/v1/models", headers={"origin": "https://x.example"})
        assert answer.headers["access-control-allow-origin"] == "*"
