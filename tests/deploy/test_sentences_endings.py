from pathlib import Path

import pytest

from deploy.cli import CommandLine, find_config, parse
from deploy.layout import serve_plan
from deploy.sentences import Ended, describe_end, describe_loss, rank_flags, replacement, worker_flags

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
    assert describe_loss(role, left, lambda each: f"start {each}").startswith(says)


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


@pytest.mark.parametrize("typed", [{}, {"gpus": "2,3"}, {"device": "cuda"}])
def test_the_command_starts_it_on_the_same_gpu(typed: dict[str, str]) -> None:
    found = find_config(CommandLine("serve", {**typed, "decode": "2"}), {})
    plan = serve_plan(found, Path("/m"), "m", cores=2, gpus=(2, 3))
    flags = [rank_flags([settings]) for settings in plan.worker_settings]
    assert flags == [
        ("--gpus", "2", "--workers-on-gpu", "2"),
        ("--gpus", "3"),
        ("--gpus", "2", "--workers-on-gpu", "2"),
    ]
    command = replacement("decode", "tcp://127.0.0.1:5", worker_flags(found), 3, flags[1])
    parsed = parse(command.split()[1:], "1")
    assert parsed.flags["gpus"] == "3" and command.count("--gpus") == 1
    on_the_cpu = serve_plan(found, Path("/m"), "m", cores=2).worker_settings[0]
    assert rank_flags([on_the_cpu]) == ()


def test_the_command_starts_as_many_ranks() -> None:
    typed = {"prefill": "0", "decode": "0", "unified": "1", "dp-size": "3", "tp-size": "3", "enable-dp-attention": "on"}
    found = find_config(CommandLine("serve", typed), {})
    flags = ("--dp-size", "3", "--enable-dp-attention")
    assert rank_flags(serve_plan(found, Path("/m"), "m", cores=2).worker_settings) == flags
    ranks = serve_plan(found, Path("/m"), "m", cores=2, gpus=(2, 3)).worker_settings
    assert rank_flags(ranks) == (*flags, "--gpus", "2,3", "--workers-on-gpu", "2")
    command = replacement("unified", "tcp://127.0.0.1:5", worker_flags(found), 3, flags)
    assert command == (
        "baton worker --role unified --gateway tcp://127.0.0.1:5 --dp-size 3 --enable-dp-attention --workers-on-host 3"
    )
