import pytest

from deploy.cli import main
from deploy.layout import serve_plan, worker_plan
from deploy.machine import read_cpus, share_cpus, show_numbers
from protocol.errors import ConfigError
from tests.deploy.configs import MODEL, config

HERE = (0, 1, 2, 3, 6)


@pytest.mark.parametrize(
    "text, cpus",
    [
        ("none", None),
        ("auto", HERE),
        ("1", (1,)),
        ("0-3,6", HERE),
        ("6,0-1", (6, 0, 1)),  # in the order of the list
        ("0, 2", (0, 2)),
        ("3-3", (3,)),
    ],
)
def test_lists(text: str, cpus: tuple[int, ...] | None) -> None:
    assert read_cpus(text, HERE) == cpus


@pytest.mark.parametrize(
    "text, says",
    [
        ("all", "got 'all', expected auto, none, or cores such as 0-3,6"),
        ("0,,1", "expected auto, none, or cores"),
        ("-1", "expected auto, none, or cores"),
        ("0-", "expected auto, none, or cores"),
        ("1.5", "expected auto, none, or cores"),
        ("²", "expected auto, none, or cores"),
        ("0," * 9999, "expected auto, none, or cores"),
        ("0-99999999", "expected auto, none, or cores"),
        ("3-0", "expected 0-3"),
        ("0-4", "but there is no core 4 for this process; there are 0-3,6"),
        ("0-999999", "but there is no core 4 for this process; there are 0-3,6"),
        ("0-2,1", "got '0-2,1', which names core 1 twice"),
    ],
)
def test_wrong_lists(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_cpus(text, HERE)
    assert caught.value.message.startswith("--cpus: got ")
    assert says in caught.value.message and len(caught.value.message) < 200


@pytest.mark.parametrize(
    "cpus, num_workers, shares",
    [
        ((0, 1), 2, [(0,), (1,)]),
        ((0, 1), 1, [(0, 1)]),
        ((0, 1, 2, 3, 6), 2, [(0, 1, 2), (3, 6)]),
        ((4, 5), 3, [(4,), (5,), (4,)]),
        ((7,), 2, [(7,), (7,)]),
        (tuple(range(7)), 3, [(0, 1, 2), (3, 4), (5, 6)]),
    ],
)
def test_shares(cpus: tuple[int, ...], num_workers: int, shares: list[tuple[int, ...]]) -> None:
    assert share_cpus(cpus, num_workers) == shares


def test_shown_as_written() -> None:
    assert show_numbers((6, 0, 1, 2, 3)) == "0-3,6"


def test_threads_follow_the_pin() -> None:
    plan = serve_plan(config("serve"), MODEL, "story", cores=8, cpus=(0, 1, 2, 3, 6))
    assert [settings.threads for settings in plan.worker_settings] == [3, 2]
    assert [spec.cpus for spec in plan.workers("tcp://h:1")] == [(0, 1, 2), (3, 6)]
    assert [spec.environment["OMP_NUM_THREADS"] for spec in plan.workers("tcp://h:1")] == ["3", "2"]
    assert plan.gateway.cpus is None
    few = serve_plan(config("serve"), MODEL, "story", cores=2, cpus=tuple(range(16)))  # a quota of 2
    assert [settings.threads for settings in few.worker_settings] == [2, 2]
    chosen = serve_plan(config("serve", threads="5"), MODEL, "story", cores=8, cpus=(0, 1))
    assert [settings.threads for settings in chosen.worker_settings] == [5, 5]
    (spec,) = worker_plan(config("worker", role="decode", gateway="tcp://h:1"), MODEL, "d", 1, "h", 8, (2, 3))
    assert (spec.cpus, spec.environment["OMP_NUM_THREADS"]) == ((2, 3), "2")


@pytest.mark.parametrize("command", ["serve --port 0", "worker --role decode --gateway tcp://127.0.0.1:9"])
def test_a_wrong_list_ends_the_command_before_anything_starts(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BATON_CPUS", raising=False)
    assert main([*command.split(), "--cpus", "0-999999"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("baton: error: --cpus: got '0-999999', but there is no core ")
    assert (shown.err.count("\n"), shown.out) == (1, "")
