import socket
from pathlib import Path

import pytest
import torch

from deploy.machine import address_facing, check_port_free, count_cores, count_gpus, cpu_quota
from loadtest.ports import held_port
from protocol.errors import ConfigError
from runtime.address import split_endpoint


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


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port: {port} on 127.0.0.1 is in use by another process"):
            check_port_free("127.0.0.1", port)


def test_a_free_port_stays_free() -> None:
    check_port_free("127.0.0.1", 0)
    with held_port() as port:
        check_port_free("127.0.0.1", port)
        with socket.create_server(("127.0.0.1", port)) as server:
            assert server.getsockname()[1] == port


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--host: cannot listen on 192\.0\.2\.1:8000"):
        check_port_free("192.0.2.1", 8000)


@pytest.mark.parametrize("endpoint, found", [("tcp://h:1", ("h", 1)), ("tcp://[::1]:7000", ("::1", 7000))])
def test_endpoints(endpoint: str, found: tuple[str, int]) -> None:
    assert split_endpoint(endpoint, "--gateway") == found


@pytest.mark.parametrize("endpoint", ["h:1", "tcp://h", "tcp://:1", "http://h:1", "tcp://h:x", "tcp://h:70000"])
def test_wrong_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"--gateway: got .*, expected tcp://HOST:PORT"):
        split_endpoint(endpoint, "--gateway")


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
