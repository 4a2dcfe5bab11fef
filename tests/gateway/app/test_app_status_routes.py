from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.app.app import build_app
from protocol.messages_gateway import Role
from protocol.worker_facts import DraftInfo
from runtime.installation import baton_version
from testkit.fake_worker import STATS
from tests.gateway.conftest import Setting, running
from tests.gateway.folders import byte_tokenizer, write_folder


def routes(setting: Setting) -> list[tuple[str, set[str]]]:
    """Path and methods of every route."""
    app = build_app(setting.gateway.service)
    return [(route.path.replace("{name:path}", "story"), route.methods) for route in app.routes]  # type: ignore[attr-defined]


async def test_head_is_answered_wherever_get_is(setting: Setting) -> None:
    await setting.add_pair()
    paths = [path for path, methods in routes(setting) if "GET" in methods]
    assert len(paths) >= 12
    for path in paths:
        found, head = await setting.client.get(path), await setting.client.head(path)
        assert (head.status_code, head.content) == (200, b""), path
        assert head.headers["content-type"] == found.headers["content-type"]
        refused = await setting.client.delete(path)
        assert refused.status_code == 405 and "HEAD" in refused.headers["allow"].split(", "), path
    assert (await setting.client.head("/v1/completions")).status_code == 405
    assert (await setting.client.head("/nowhere")).status_code == 404


async def test_a_slash_at_the_end_changes_nothing(setting: Setting) -> None:
    await setting.add_pair()
    for path, methods in routes(setting):
        for method in methods:
            plain, slashed = [await setting.client.request(method, path + end) for end in ("", "/")]
            assert slashed.status_code == plain.status_code != 404, (method, path)
    response = await setting.client.post("/v1/completions/", json={"prompt": [1, 2], "max_tokens": 3})
    assert response.status_code == 200 and response.json()["usage"]["completion_tokens"] == 3


async def facts(setting: Setting, *paths: str) -> dict[str, Any]:
    """What all of the paths say alike."""
    first, second = [(await setting.client.get(path)).json() for path in paths]
    assert first == second
    found: dict[str, Any] = first
    return found


async def test_server_info_counts_what_decodes(setting: Setting) -> None:
    before = await facts(setting, "/server_info", "/get_server_info")
    assert (before["max_running_requests"], before["max_total_tokens"]) == (0, 0)
    await setting.add(Role.PREFILL)
    [first, second] = [await setting.add(role) for role in (Role.DECODE, Role.UNIFIED)]
    found = await facts(setting, "/server_info", "/get_server_info")
    rows = {row["id"]: row for row in (await setting.client.get("/workers")).json()}
    decodes = [rows[worker.worker_id] for worker in (first, second)]
    for name in ("max_running_requests", "max_total_tokens"):
        assert found[name] == sum(row[name] for row in decodes) > 0
    assert found["model_id"] == found["served_model_name"] == "story" and "model" not in found
    assert (found["tp_size"], found["dp_size"], found["disaggregation_mode"]) == (1, 1, "null")
    assert found["internal_states"][0].get("avg_spec_accept_length") is None
    assert found["version"] == baton_version() and found["context_length"] == 512


async def test_routers_are_told_where_the_tokenizer_is(folder: Path, tmp_path: Path) -> None:
    """They load it to count tokens."""
    for elsewhere in (None, str(write_folder(tmp_path / "texts", byte_tokenizer()))):
        async with running(folder, tokenizer=elsewhere) as setting:
            for paths in (("/server_info", "/get_server_info"), ("/model_info", "/get_model_info")):
                found = await facts(setting, *paths)
                assert (found["model_path"], found["tokenizer_path"]) == (str(folder), elsewhere or str(folder))


@pytest.mark.parametrize("asked", ["tale", "fable", "models/story", "./models/story/"])
async def test_every_name_is_served_and_the_first_is_told(folder: Path, asked: str) -> None:
    typed = "./models/story/" if asked.startswith(".") else "models/story"
    names: dict[str, Any] = {"served_model_name": ("tale", "fable"), "model_as_typed": typed}
    async with running(folder, **names) as setting:
        await setting.add_pair()
        response = await setting.complete([1], max_tokens=2, model=asked)
        assert response.status_code == 200 and response.json()["model"] == "tale"
        assert '"model":"tale"' in (await setting.complete([1], max_tokens=2, model=asked, stream=True)).text
        listed = (await setting.client.get("/v1/models")).json()["data"]
        assert [each["id"] for each in listed] == ["tale", "fable"]
        assert {each["root"] for each in listed} == {str(folder)}
        one = (await setting.client.get(f"/v1/models/{asked.removeprefix('./')}")).json()
        if asked.startswith("."):  # a client that tidies the URL asks for another name
            assert one["error"]["code"] == "model_not_found"
        else:
            assert one["id"] == (asked if asked in ("tale", "fable") else "tale")
        refused = await setting.complete([1], model="story")
        assert refused.status_code == 404 and "'tale' or 'fable'" in refused.json()["error"]["message"]


async def test_the_draft_is_named(setting: Setting) -> None:
    names = ("speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps")
    await setting.add(Role.PREFILL)
    found = await facts(setting, "/server_info", "/get_server_info")
    assert [found[name] for name in names] == [None, None, None]
    await setting.add(Role.UNIFIED, draft=DraftInfo("eagle3", "/m/story-eagle3", 4))
    found = await facts(setting, "/server_info", "/get_server_info")
    assert [found[name] for name in names] == ["eagle3", "/m/story-eagle3", 4]
    drafts = [row["draft"] for row in (await setting.client.get("/workers")).json()]
    assert None in drafts and {"algorithm": "eagle3", "folder": "/m/story-eagle3", "num_steps": 4} in drafts


async def test_benchmarks_are_told_what_fits_and_what_drafts_gain(setting: Setting) -> None:
    counters: dict[str, float] = {
        "spec_proposed_1": 10,
        "spec_accepted_1": 6,
        "spec_proposed_2": 10,
        "spec_accepted_2": 4,
    }
    await setting.add(Role.PREFILL, stats=replace(STATS, counters=counters))
    await setting.add(Role.DECODE)
    [state] = (await facts(setting, "/server_info", "/get_server_info"))["internal_states"]
    assert state == {"effective_max_running_requests_per_dp": 64, "memory_usage": {"token_capacity": 1024}}
    for _ in range(2):
        await setting.add(Role.UNIFIED, stats=replace(STATS, counters=counters))
    [state] = (await facts(setting, "/server_info", "/get_server_info"))["internal_states"]
    assert state["memory_usage"] == {"token_capacity": 3 * 1024}
    assert state["avg_spec_accept_length"] == 2.0, "one token of the target's own, and one that was proposed"


async def test_ranks_show_their_place_and_their_idle_launches(setting: Setting) -> None:
    stats = replace(STATS, num_launches=9, counters={"idle_launches": 4})
    await setting.add_group(Role.DECODE, "d", 2, epoch=3, stats=stats)
    await setting.add(Role.PREFILL, "p")
    rows = (await setting.client.get("/workers")).json()
    places = [{"group": "d", "epoch": 3, "rank": rank, "size": 2} for rank in range(2)]
    assert [(row["id"], row["place"]) for row in rows] == [("d.0", places[0]), ("d.1", places[1]), ("p", None)]
    assert [(row["launches"], row["idle_launches"]) for row in rows] == [(9, 4), (9, 4), (0, 0)]


async def test_a_worker_without_graphs_says_why(setting: Setting) -> None:
    await setting.add(Role.PREFILL)
    await setting.add(Role.DECODE, graphs="none: CUDA error: out of memory")
    found = {row["role"]: row["graphs"] for row in (await setting.client.get("/workers")).json()}
    assert found == {"prefill": "", "decode": "none: CUDA error: out of memory"}


async def test_the_schemas_know_the_workers(setting: Setting) -> None:
    async def properties() -> Any:
        document = (await setting.client.get("/openapi.json")).json()
        return document["components"]["schemas"]["CompletionRequest"]["properties"]

    assert (await properties())["model"]["enum"] == ["story", None]
    assert (await properties())["n"]["anyOf"][0]["maximum"] == 128
    await setting.add(Role.UNIFIED, context_length=30)
    fields = await properties()
    assert fields["n"]["anyOf"][0]["maximum"] == 64 and fields["max_completion_tokens"]["anyOf"][0]["maximum"] == 29


async def test_each_route_tells_its_errors(setting: Setting) -> None:
    paths = (await setting.client.get("/openapi.json")).json()["paths"]
    everywhere = {"400", "401", "408", "413", "431", "500", "503"}
    for path, method, more in (
        ("/health", "get", set()),
        ("/v1/models/{name}", "get", {"404"}),
        ("/abort_request", "post", {"415", "429"}),
        ("/v1/completions", "post", {"404", "415", "429"}),
        ("/generate", "post", {"404", "415", "429"}),
    ):
        answers = paths[path][method]["responses"]
        assert answers.keys() == everywhere | more | {"200"}, path
        refused = answers["400"]["content"]["application/json"]["schema"]
        assert refused == {"$ref": "#/components/schemas/Error"}


async def test_examples_of_bodies_are_served(setting: Setting) -> None:
    await setting.add_pair()
    document = (await setting.client.get("/openapi.json")).json()
    for path in ("/v1/completions", "/v1/chat/completions"):
        example = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"]
        assert example["model"] == "story"
        assert (await setting.client.post(path, json=example)).status_code == 200
