import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.keys import new
from gateway.__main__ import main
from gateway.process import Gateway
from gateway.text.chat_template import ChatTemplates, read_template, read_template_sources
from protocol.errors import CheckpointError, ConfigError
from protocol.messages_gateway import Heartbeat, Role
from runtime.clock import MonotonicClock
from runtime.settings import GatewaySettings
from testkit.fake_worker import PATIENCE_S, STATS, FakeWorker
from tests.gateway.conftest import connect, running, wait_until
from tests.gateway.folders import BOS, byte_tokenizer, write_folder
from tests.gateway.text.channels.templates import QWEN_OF_TEXT


def settings(folder: Path, **fields: Any) -> GatewaySettings:
    wanted: dict[str, Any] = {"port": 0, "model": str(folder), "served_model_name": ("story",), **fields}
    return GatewaySettings(**wanted)


def start(found: GatewaySettings) -> tuple[subprocess.Popen[bytes], list[dict[str, Any]]]:
    """A gateway process and its status events until it is ready or has failed."""
    read_fd, write_fd = os.pipe()
    command = [sys.executable, "-m", "gateway", "--settings", found.to_json(), "--status-fd", str(write_fd)]
    process = subprocess.Popen(command, pass_fds=[write_fd], stderr=subprocess.DEVNULL)
    os.close(write_fd)
    events = []
    with os.fdopen(read_fd) as pipe:
        for line in pipe:
            events.append(json.loads(line))
            if events[-1]["event"] in ("ready", "failed"):
                break
    return process, events


def test_starts_tells_where_and_stops(folder: Path) -> None:
    process, events = start(settings(folder))
    try:
        assert events[-1]["event"] == "ready" and events[-1]["control"].startswith("tcp://127.0.0.1:")
        assert httpx.get(events[-1]["http"] + "/v1/models", timeout=PATIENCE_S).json()["data"][0]["id"] == "story"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


async def test_chats_of_gpt_oss_are_refused_because_harmony_is_not_parsed(tmp_path: Path) -> None:
    """Whatever its template; a template of one's own makes prompts, and then only workers are missing."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8}
    config = {**sizes, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"}
    folder = write_folder(tmp_path / "oss", byte_tokenizer(), config=config)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    async with running(folder) as setting:
        answer = await setting.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400 and answer.json()["error"]["message"] == (
            "messages: chats of this model have the harmony format, which is not parsed yet; use /v1/completions with a"
            " prompt"
        )
        text = await setting.client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2})
        assert text.status_code == 503
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages[0].content }}")
    async with running(folder, chat_template=str(template)) as setting:
        assert (await setting.client.post("/v1/chat/completions", json=body)).status_code == 503


async def test_workers_are_lost_after_the_limits_of_the_settings(folder: Path) -> None:
    async with running(folder, silence_limit_s=7, launch_deadline_s=50) as setting:
        table = setting.gateway.control.membership
        worker = FakeWorker(Role.UNIFIED, setting.gateway.control_endpoint, "u", instance=3)
        registration = worker.registration()
        await worker.stop()
        table.register(registration, 0.0)
        assert table.expire(6.8).lost == ()
        assert len(table.expire(7.0).lost) == 1
        table.register(replace(registration, address=replace(registration.address, instance=4)), 8.0)
        table.heartbeat(Heartbeat("u", 4, STATS, launch_age_s=49.9), 8.0)
        assert table.expire(8.0).lost == ()
        table.heartbeat(Heartbeat("u", 4, STATS, launch_age_s=50.0), 8.0)
        assert len(table.expire(8.0).lost) == 1


@pytest.mark.slow
def test_a_failed_start_says_why(tmp_path: Path) -> None:
    process, events = start(settings(tmp_path / "nowhere"))
    assert process.wait(PATIENCE_S) == 2
    assert events[-1]["event"] == "failed" and "does not exist" in events[-1]["error"]


def test_wrong_folders_and_addresses(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ConfigError, match="is in use by another process"):
            Gateway(settings(folder, port=taken.getsockname()[1]), MonotonicClock())
        with pytest.raises(ConfigError, match="control"):
            Gateway(settings(folder, control=f"tcp://127.0.0.1:{taken.getsockname()[1]}"), MonotonicClock())
    (folder / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Gateway(settings(folder), MonotonicClock())


async def test_what_generation_config_asks_in_vain_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(write_folder(tmp_path / "story", generation={"no_repeat_ngram_size": 3})):
        [record] = [each for each in caplog.records if "generation_config.json" in each.getMessage()]
    assert record.__dict__["baton_fields"] == {"no_repeat_ngram_size": 3}


def test_threads_of_long_bodies_give_way_soon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the loop waits 5 ms whenever it wants to run beside one: at every write to a client."""
    seen: list[float] = []

    def run(work: Coroutine[Any, Any, None]) -> None:
        seen.append(sys.getswitchinterval())
        work.close()

    monkeypatch.setattr("gateway.__main__.uvloop.run", run)
    monkeypatch.setattr("gateway.__main__.Gateway", lambda *_: None)
    for what in ("_make_room", "gc.freeze", "gc.set_threshold"):
        monkeypatch.setattr(f"gateway.__main__.{what}", lambda *_: None)
    before, handlers = sys.getswitchinterval(), logging.getLogger().handlers[:]
    sys.setswitchinterval(0.005)  # Python's own
    try:
        assert main(["--settings", settings(folder).to_json()]) == 0
    finally:
        sys.setswitchinterval(before)
        logging.getLogger().handlers[:] = handlers
    assert len(seen) == 1 and seen[0] <= 0.001


@pytest.mark.parametrize("text", ["{", '{"port": "x"}', '{"model": "/nowhere", "served_model_name": ["m"]}'])
def test_settings_that_make_no_sense_end_it_with_status_2(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger().handlers[:]
    try:
        assert main(["--settings", text]) == 2
    finally:
        logging.getLogger().handlers[:] = before
    said = capsys.readouterr().err
    assert "cannot start" in said and said.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_request_that_is_still_being_sent_when_the_gateway_stops_is_told_so(
    folder: Path, goes_on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(folder) as setting:
        worker = await setting.add(Role.UNIFIED)
        reader, writer = await connect(setting)
        body = b'{"prompt": "x", "max_tokens": 400}'
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body[:9])
        await wait_until(lambda: setting.gateway.service.admission.num_bytes == 9)
        setting.gateway.stop()
        if goes_on:
            writer.write(body[9:])
        head, _, content = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 503 ") and b"retry-after" in head
        assert json.loads(content)["error"]["message"] == "the gateway is stopping"
        assert not worker.assigned and not any(record.exc_info for record in caplog.records)


async def test_what_other_machines_reach_needs_keys(folder: Path, tmp_path: Path) -> None:
    new(tmp_path / "keys", [])
    with pytest.raises(ConfigError, match="can be reached from other machines"):
        Gateway(settings(folder, control="tcp://0.0.0.0:0"), MonotonicClock())
    with pytest.raises(ConfigError, match="it is the folder of a worker"):
        Gateway(settings(folder, keys=str(tmp_path / "keys/worker")), MonotonicClock())
    for fields in ({"keys": str(tmp_path / "keys/gateway")}, {"trust_network": True}):
        async with running(folder, control="tcp://0.0.0.0:0", **fields) as setting:
            counted = "baton_connections_refused_total" in (await setting.client.get("/metrics")).text
            assert counted == ("keys" in fields)


async def test_tokenizer_and_template_may_be_elsewhere(tmp_path: Path) -> None:
    """The model's folder has neither."""
    tokenizer = write_folder(tmp_path / "texts", byte_tokenizer(), template="not this one")
    template = tmp_path / "chat.jinja"
    template.write_text("{% for message in messages %}[{{ message.content }}]{% endfor %}")
    elsewhere = {"tokenizer": str(tokenizer), "chat_template": str(template)}
    async with running(write_folder(tmp_path / "story"), **elsewhere) as setting:
        worker = await setting.add_pair()
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        response = await setting.client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        assert [bytes(assign.prompt_ids) for assign in worker.assigned] == [b"[Hi]"]


async def test_a_template_of_its_own_leaves_the_tokenizer_where_it_is(folder: Path, tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{{ bos_token }}{{ messages[0].content }}")
    async with running(folder, chat_template=str(template)) as setting:
        worker = await setting.add_pair()
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        assert (await setting.client.post("/v1/chat/completions", json=body)).status_code == 200
        assert [assign.prompt_ids for assign in worker.assigned] == [(BOS, *b"Hi")]


async def test_templates_are_read_once_even_if_calls_are_rendered_in_a_second_form(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This template takes the arguments of calls as text, which the gateway finds out with templates for objects."""
    template = tmp_path / "chat.jinja"
    template.write_text(QWEN_OF_TEXT)
    read: list[Path] = []
    made: list[tuple[Any, ...]] = []

    def counted(reads: Callable[[Path], Any], path: Path) -> Any:
        read.append(path)
        return reads(path)

    def make(*given: Any) -> ChatTemplates:
        made.append(given)
        return ChatTemplates(*given)

    monkeypatch.setattr("gateway.process.read_template", partial(counted, read_template))
    monkeypatch.setattr("gateway.process.read_template_sources", partial(counted, read_template_sources))
    monkeypatch.setattr("gateway.process.ChatTemplates", make)
    async with running(folder, chat_template=str(template)):
        assert [given[2] for given in made] == ["object", "text"], "the form of the arguments was found out"
        assert sorted(read) == sorted([folder, template])


def test_a_tokenizer_that_does_not_fit_is_refused(folder: Path, tmp_path: Path) -> None:
    small = write_folder(tmp_path / "small", config={"vocab_size": 200})
    for fields, says in (
        ({"tokenizer": str(small)}, "--tokenizer: .* has no tokenizer.json"),
        (
            {"model": str(small), "tokenizer": str(folder)},
            "has token ids up to 261, expected ids below 200, the model's",
        ),
    ):
        with pytest.raises(ConfigError, match=says):
            Gateway(settings(folder, **fields), MonotonicClock())


@pytest.mark.parametrize(
    "content, says",
    [
        (None, "cannot be read: No such file or directory"),
        (b"{% if %}", "not a Jinja template: Expected an expression"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b" " * (1 << 20) + b" ", "expected a file of at most 1048576 bytes"),
    ],
)
def test_a_template_that_is_none_is_refused(folder: Path, tmp_path: Path, content: bytes | None, says: str) -> None:
    template = tmp_path / "chat.jinja"
    if content is not None:
        template.write_bytes(content)
    with pytest.raises(ConfigError, match="--chat-template: ") as caught:
        Gateway(settings(folder, chat_template=str(template)), MonotonicClock())
    assert says in caught.value.message
