import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.cli import CommandLine, find_config, parse
from deploy.layout import serve_plan
from deploy.model_folder import PROJECT
from deploy.sentences import (
    Ended,
    count_roles,
    curl,
    describe_draft,
    describe_end,
    describe_leaving,
    describe_loss,
    describe_ranks,
    describe_workers,
    dialable,
    gateway_lines,
    local_url,
    rank_flags,
    replacement,
    serve_lines,
    worker_flags,
    worker_lines,
)
from protocol.messages_gateway import Role
from runtime.settings import WorkerSettings

INFO = "2026-01-31T12:00:00.000Z info decode-0 ready kv_pages=5"
ERROR = "2026-01-31T12:00:00.000Z error decode-0 protocol error"


@pytest.mark.parametrize(
    "code, line, says",
    [
        (-9, INFO, "decode-0 was killed by SIGKILL"),
        (-9, ERROR, f"decode-0 was killed by SIGKILL; its last line: {ERROR}"),
        (1, "KeyError: 3", "decode-0 ended with exit status 1; its last line: KeyError: 3"),
        (0, INFO, "decode-0 ended with exit status 0"),
        (1, "", "decode-0 ended with exit status 1"),
    ],
)
def test_the_last_line_is_told_where_it_may_say_why(code: int, line: str, says: str) -> None:
    assert describe_end(Ended("decode-0", code, line)) == says


@pytest.mark.parametrize(
    "role, left, says",
    [
        ("decode", ["prefill"], "No decode worker of this command is left: requests are answered 503 until one joins."),
        ("decode", ["decode"], "No prefill worker of this command is left"),
        (
            "decode",
            [],
            "No prefill and no decode worker of this command is left: requests are answered 503 until one of",
        ),
        ("unified", ["decode"], "No unified worker of this command is left"),
        ("decode", ["prefill", "decode"], "1 prefill worker + 1 decode worker still serve: new requests go there."),
        ("prefill", ["unified"], "1 unified worker still serves: "),
    ],
)
def test_a_loss_says_what_still_serves(role: str, left: list[str], says: str) -> None:
    assert describe_loss(role, left, lambda lost: f"start {lost}").startswith(says)


def test_a_loss_says_how_to_mend_it() -> None:
    def start(role: str) -> str:
        return f"start {role}"

    assert describe_loss("decode", ["prefill"], start).endswith(" Start another: start decode")
    assert describe_loss("decode", [], start).endswith(" Start another: start prefill and: start decode")


def test_the_command_starts_such_a_worker() -> None:
    typed = {"model": "/my models/x", "page-size": "8", "disable-overlap-schedule": "true", "port": "0", "host": "::1"}
    flags = worker_flags(find_config(CommandLine("serve", typed), {"BATON_DTYPE": "float32"}))
    assert flags == (
        "--model", "/my models/x", "--dtype", "float32", "--page-size", "8", "--disable-overlap-schedule=true",
    )  # fmt: skip
    command = replacement("decode", "tcp://127.0.0.1:5", flags[:2], workers=2)
    start = "baton worker --role decode --gateway tcp://127.0.0.1:5"
    assert command == f"{start} --model '/my models/x' --workers-on-host 2"
    assert replacement("decode", "tcp://127.0.0.1:5", (), workers=1) == start


def test_the_command_has_names_at_a_hub_as_they_are_and_folders_with_their_paths() -> None:
    named = {"model": "org/tiny", "revision": "v1", "tokenizer": "org/texts", "keys": "org/keys"}
    flags = worker_flags(find_config(CommandLine("serve", named), {}))
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    assert given == {f"--{name}": text for name, text in named.items()} | {"--keys": str(Path("org/keys").resolve())}


@pytest.mark.parametrize("typed", [{}, {"gpus": "2,3"}, {"device": "cuda"}])
def test_the_command_starts_it_on_the_same_gpu(typed: dict[str, str]) -> None:
    config = find_config(CommandLine("serve", {**typed, "decode": "2"}), {})
    plan = serve_plan(config, Path("/m"), "m", cores=2, gpus=(2, 3))
    flags = [rank_flags([settings]) for settings in plan.worker_settings]
    assert flags == [
        ("--gpus", "2", "--workers-on-gpu", "2"),
        ("--gpus", "3"),
        ("--gpus", "2", "--workers-on-gpu", "2"),
    ]
    command = replacement("decode", "tcp://127.0.0.1:5", worker_flags(config), 3, flags[1])
    parsed = parse(command.split()[1:], "1")
    assert parsed.flags["gpus"] == "3" and command.count("--gpus") == 1
    on_the_cpu = serve_plan(config, Path("/m"), "m", cores=2).worker_settings[0]
    assert rank_flags([on_the_cpu]) == ()


def test_the_command_starts_as_many_ranks() -> None:
    typed = {"prefill": "0", "decode": "0", "unified": "1", "dp-size": "3", "tp-size": "3", "enable-dp-attention": "on"}
    config = find_config(CommandLine("serve", typed), {})
    flags = ("--dp-size", "3", "--enable-dp-attention")
    assert rank_flags(serve_plan(config, Path("/m"), "m", cores=2).worker_settings) == flags
    ranks = serve_plan(config, Path("/m"), "m", cores=2, gpus=(2, 3)).worker_settings
    assert rank_flags(ranks) == (*flags, "--gpus", "2,3", "--workers-on-gpu", "2")
    command = replacement("unified", "tcp://127.0.0.1:5", worker_flags(config), 3, flags)
    assert command == (
        "baton worker --role unified --gateway tcp://127.0.0.1:5 --dp-size 3 --enable-dp-attention --workers-on-host 3"
    )


def test_the_ready_line_and_a_curl_to_paste() -> None:
    ready, command = serve_lines(
        "http://0.0.0.0:8000", "story", "1 prefill worker + 1 decode worker", 3.21, with_text=True
    )
    assert ready.startswith("Ready: story at http://127.0.0.1:8000 with 1 prefill worker + 1 decode worker, in 3.2 s.")
    words = shlex.split(command)
    assert words[:4] == ["curl", "-N", "-s", "http://127.0.0.1:8000/v1/completions"]
    assert json.loads(words[-1]) == {"model": "story", "prompt": "Once upon a time", "max_tokens": 64, "stream": True}


def test_the_ready_line_names_the_draft() -> None:
    plain = WorkerSettings(worker_id="u", role=Role.UNIFIED, gateway="tcp://127.0.0.1:1", model="/m/story")
    draft = "/m/story-eagle"
    settings = replace(
        plain, speculative_algorithm="eagle", speculative_draft_model_path=draft, speculative_num_steps=3
    )
    ready, _ = serve_lines("http://h:1", "story", describe_workers([settings]), 1.0, with_text=True)
    assert " with 1 unified worker, eagle draft story-eagle with up to 3 steps, in 1.0 s. Ctrl-C" in ready
    assert describe_draft(plain) == ""
    cached = replace(settings, speculative_draft_model_path="/hub/models--lab--eagle/snapshots/3f2a")
    assert describe_draft(cached) == ", eagle draft lab/eagle with up to 3 steps"


def test_the_readme_shows_what_is_printed() -> None:
    lines = serve_lines("http://127.0.0.1:8000", "story", "1 prefill worker + 1 decode worker", 2.2, with_text=True)
    assert "\n".join(lines) in (PROJECT / "README.md").read_text()


def test_a_model_without_tokenizer_is_asked_with_token_ids() -> None:
    command = serve_lines("http://h:1", "m", "1 unified worker", 1.0, with_text=False)[1]
    body = json.loads(shlex.split(command)[-1])
    assert body["prompt"] == [1, 2, 3]
    assert body["return_token_ids"] is True


def test_a_name_with_quotes_survives_the_shell() -> None:
    body: dict[str, object] = {"model": 'it\'s a "model" $HOME'}
    assert json.loads(shlex.split(curl("http://h:1", body))[-1]) == body


def test_with_keys_the_command_reads_the_first_one_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "our keys"
    path.write_text("# ours\n  # old: sk-0\n  \n sk-1\nsk-2\n")
    command = serve_lines("http://h:1", "m", "1 unified worker", 1.0, with_text=True, api_key_file=str(path))[1]
    said = subprocess.run(["bash", "-c", command.replace("curl", "printf '%s\\n'", 1)], capture_output=True, check=True)
    assert "Authorization: Bearer sk-1" in said.stdout.decode().splitlines() and "sk-1" not in command


def test_counts_of_roles() -> None:
    assert count_roles(["unified"]) == "1 unified worker"
    assert count_roles(["prefill", "decode", "decode"]) == "1 prefill worker + 2 decode workers"


def test_groups_and_their_ranks_are_told() -> None:
    flags = {"decode": "2", "decode-dp-size": "3", "enable-dp-attention": "true", "cpus": "0-7"}
    plan = serve_plan(find_config(CommandLine("serve", flags), {}), Path("/m"), "m", cores=16, cpus=tuple(range(8)))
    assert describe_workers(plan.worker_settings) == "1 prefill worker + 2 decode workers of 3 ranks each"
    assert describe_workers(plan.worker_settings[1:4]) == "1 decode worker of 3 ranks"
    told = "each has 1 or 2 threads and counts as one of 7 workers on this machine"
    assert describe_ranks(plan.worker_settings) == [
        f"group decode-0 has the ranks decode-0.0 to decode-0.2; {told.replace('1 or 2 threads', '1 thread')}",
        f"group decode-1 has the ranks decode-1.0 to decode-1.2; {told.replace('1 or 2 threads', '1 thread')}",
    ]
    two = [replace(worker, threads=worker.group_rank + 1) for worker in plan.worker_settings[1:3]]
    assert describe_ranks(two) == [f"group decode-0 has the ranks decode-0.0 to decode-0.1; {told}"]
    assert describe_ranks(plan.worker_settings[:1]) == []


def test_the_gateway_says_how_to_join_it() -> None:
    lines = gateway_lines("http://127.0.0.1:8000", "tcp://0.0.0.0:7000", None)
    assert "http://127.0.0.1:8000" in lines[0]
    assert lines[0].endswith("; where two share a host, add --workers-on-host 2 to each:")
    assert lines[2] == "baton worker --role decode --gateway tcp://THIS_HOST:7000"
    named = gateway_lines("http://h:1", "tcp://127.0.0.1:7000", "/my models/x")[1]
    assert named == "baton worker --role prefill --gateway tcp://127.0.0.1:7000 --model '/my models/x'"
    trusting = gateway_lines("http://h:1", "tcp://0.0.0.0:7000", None, "--trust-network")[1]
    assert trusting == "baton worker --role prefill --gateway tcp://THIS_HOST:7000 --trust-network"
    assert "decode-x" in worker_lines("decode-x", "tcp://h:1")[0]


def test_wildcards_are_replaced() -> None:
    assert local_url("http://[::]:80") == "http://[::1]:80"
    assert dialable("tcp://127.0.0.1:5") == "tcp://127.0.0.1:5"


def test_who_waits_for_requests_says_how_many() -> None:
    told = [describe_leaving("gateway", number, 60).split("; ")[0] for number in (0, 1, 2)]
    assert told == ["gateway: 0 requests run", "gateway: 1 request runs", "gateway: 2 requests run"]
