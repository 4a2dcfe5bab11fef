"""Memory as invented machines report it: both cgroup versions, nested limits, none at all."""

from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from model.host_memory import available_bytes, device_share, give_back

CPU = torch.device("cpu")
MIB = 1 << 20


def machine(tmp: Path, cgroup: str | None, files: dict[str, str], available_mib: int = 1000) -> int:
    proc, groups = tmp / "proc", tmp / "cgroup"
    (proc / "self").mkdir(parents=True)
    groups.mkdir()
    (proc / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:   {available_mib * 1024} kB\n")
    if cgroup is not None:
        (proc / "self" / "cgroup").write_text(cgroup)
    for name, content in files.items():
        path = groups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return available_bytes(CPU, proc=proc, cgroups=groups) // MIB


def test_without_limits_the_kernel_is_believed(tmp_path: Path) -> None:
    assert machine(tmp_path, None, {}) == 1000


def test_version_2_takes_the_tightest_parent_and_forgives_page_cache(tmp_path: Path) -> None:
    files = {
        "a/b/memory.max": "max\n",
        "a/b/memory.current": f"{50 * MIB}\n",
        "a/memory.max": f"{300 * MIB}\n",
        "a/memory.current": f"{250 * MIB}\n",
        "a/memory.stat": f"anon 1\ninactive_file {40 * MIB}\nactive_file 7\n",
    }
    assert machine(tmp_path, "0::/a/b\n", files) == 90


def test_version_2_in_a_container_sees_its_own_root(tmp_path: Path) -> None:
    files = {"memory.max": f"{200 * MIB}", "memory.current": f"{20 * MIB}"}
    assert machine(tmp_path, "0::/machine/that/is/not/mounted\n", files) == 180


def test_version_1(tmp_path: Path) -> None:
    files = {
        "memory/x/memory.limit_in_bytes": f"{100 * MIB}",
        "memory/x/memory.usage_in_bytes": f"{70 * MIB}",
        "memory/x/memory.stat": f"total_inactive_file {5 * MIB}\n",
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "0",
    }
    assert machine(tmp_path, "4:cpu,memory:/x\n3:pids:/\n0::/\n", files) == 35


@pytest.mark.parametrize("usage", [100, 130])
def test_a_full_group_has_no_room(tmp_path: Path, usage: int) -> None:
    files = {"memory.max": f"{100 * MIB}", "memory.current": f"{usage * MIB}"}
    assert machine(tmp_path, "0::/\n", files) == 0


def test_this_machine_has_some() -> None:
    assert available_bytes(CPU) > 0


@pytest.mark.parametrize("order", list(permutations(("load a", "load b", "keep a", "keep b"))))
def test_the_parts_of_a_device_do_not_depend_on_who_asks_first(
    order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers load 16 of 140, and then each takes its part for KV; only loading comes before keeping."""
    if any(order.index(f"load {each}") > order.index(f"keep {each}") for each in "ab"):
        return
    held = {"a": 0, "b": 0}
    for step, who in map(str.split, order):
        if step == "load":
            held[who] += 16
            continue
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (140 - sum(held.values()), 140))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _, who=who: held[who])
        held[who] += device_share(torch.device("cuda"), 2)
    assert held == {"a": 70, "b": 70}


def test_a_part_of_a_device_is_never_more_than_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (30, 140))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 16)
    assert device_share(torch.device("cuda"), 2) == 30


@pytest.mark.parametrize("has_trim", [True, False])
def test_freed_memory_is_given_back_where_the_c_library_can(monkeypatch: pytest.MonkeyPatch, has_trim: bool) -> None:
    calls: list[int] = []
    library = SimpleNamespace(malloc_trim=calls.append) if has_trim else SimpleNamespace()
    monkeypatch.setattr("ctypes.CDLL", lambda name: library)
    give_back()
    assert calls == ([0] if has_trim else [])
