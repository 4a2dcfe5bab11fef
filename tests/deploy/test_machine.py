import socket
from pathlib import Path

import pytest
import torch

from deploy.cli import main
from deploy.layout import serve_plan, worker_plan
from deploy.machine import (
    address_facing,
    check_port_free,
    count_cores,
    count_gpus,
    cpu_quota,
    read_cpus,
    share_cpus,
    show_numbers,
)
from loadtest.ports import held_port
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


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_version_2_takes_the_smallest_quota_up_the_tree(tmp_path: Path) -> None:
    write(tmp_path / "cgroup", "0::/a/b\n")
    write(tmp_path / "fs/a/b/cpu.max", "max 100000\n")
    write(tmp_path / "fs/a/cpu.max", "150000 100000\n")
    write(tmp_path / "fs/cpu.max", "400000 100000\n")
    assert cpu_quota(tmp_path / "cgroup", tmp_path / "fs") == 1.5


def test_version_1(tmp_path: Path) -> None:
    write(tmp_path / "cgroup", "4:memory:/a\n1:cpu,cpuacct:/a\n")
    write(tmp_path / "fs/cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n")
    write(tmp_path / "fs/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n")
    write(tmp_path / "fs/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "fs/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert cpu_quota(tmp_path / "cgroup", tmp_path / "fs") == 0.5
    assert count_cores(tmp_path / "cgroup", tmp_path / "fs") == 1


def test_without_a_quota_the_affinity_counts(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "none", tmp_path) is None
    assert count_cores(tmp_path / "none", tmp_path) >= 1


def test_a_free_port_stays_free() -> None:
    check_port_free("127.0.0.1", 0)
    with held_port() as port:
        check_port_free("127.0.0.1", port)
        with socket.create_server(("127.0.0.1", port)) as server:
            assert server.getsockname()[1] == port


def test_a_local_gateway_is_faced_by_a_local_address() -> None:
    assert address_facing("tcp://127.0.0.1:7000") == "127.0.0.1"


def test_a_gpu_that_is_not_there_is_missed_at_the_door(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--device: got 'cuda', but this machine shows no GPU"):
        count_gpus("cuda", tmp_path)
    with pytest.raises(ConfigError, match="--device: got 'cuda:1', but this machine shows no GPU"):
        count_gpus("cuda:1", tmp_path)


def test_gpus_are_counted_by_torch_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here by a stand-in, which counts what the variable leaves: the process has the environment that workers have."""
    script = (
        "import os, sys; assert 'torch' not in sys.modules; print(len(os.environ['CUDA_VISIBLE_DEVICES'].split(',')))"
    )
    monkeypatch.setattr("deploy.machine._ASK_TORCH", script)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5fd4f5a6,GPU-1b2c3d4e,MIG-77")
    assert count_gpus("auto", tmp_path) == 0  # no driver: nobody is asked
    write(tmp_path / "dev/nvidia0", "")
    assert [count_gpus(device, tmp_path) for device in ("auto", "cuda", "cuda:1", "cpu")] == [3, 3, 3, 0]


@pytest.mark.parametrize(
    "script, says",
    [
        ("print('many')", "--gpus: torch cannot count the GPUs: 'many'"),
        ("raise RuntimeError('driver too old')", "torch cannot count the GPUs: 'RuntimeError: driver too old'"),
        ("import time; time.sleep(60)", "--gpus: cannot count the GPUs: .* timed out"),
    ],
)
def test_who_cannot_count_gpus_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    write(tmp_path / "dev/nvidia0", "")
    monkeypatch.setattr("deploy.machine._ASK_TORCH", script)
    if "sleep" in script:
        monkeypatch.setattr("deploy.machine._ASK_TORCH_S", 0.2)
    with pytest.raises(ConfigError, match=says):
        count_gpus("auto", tmp_path)


@pytest.mark.slow
def test_torch_is_asked_as_workers_ask_it(tmp_path: Path) -> None:
    write(tmp_path / "dev/nvidia0", "")
    assert count_gpus("auto", tmp_path) == torch.cuda.device_count()
