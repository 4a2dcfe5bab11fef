"""How a worker ends whose device is broken: nothing waits for the device, and the cause is what is told."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from protocol.errors import GroupBroken
from protocol.messages_gateway import TO_GATEWAY, Left, Role
from runtime.process_life import EXIT_BROKEN
from runtime.session import open_envelope
from runtime.settings import WorkerSettings
from scheduler.execution.streams import DeviceBroken
from tests.doubles.clock import VirtualClock
from tests.doubles.cuda_recorder import ASSERTED, MORE_LINES
from tests.worker.conftest import REGISTER
from worker.ending import close_all
from worker.gateway_link import GatewayLink
from worker.loop import WorkerLoop
from worker.parts import PeerLink, Surroundings, WorkerBroken

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "error, cause",
    [
        (DeviceBroken(ASSERTED), f"cuda:1 cannot compute any more: {ASSERTED}"),
        (torch.AcceleratorError(ASSERTED + MORE_LINES), f"cuda:1 cannot compute any more: {ASSERTED}"),
        (GroupBroken("step 7 has failed"), "the ranks cannot go on together: step 7 has failed"),
    ],
    ids=["stream", "torch", "group"],
)
def test_a_worker_whose_device_or_group_breaks_tells_the_gateway_that_it_leaves_and_names_the_cause(
    error: Exception, cause: str
) -> None:
    sent: list[bytes] = []
    gateway: Any = SimpleNamespace(receive=list, send=sent.append)

    def step() -> bool:
        raise error

    core: Any = SimpleNamespace(turn=step)
    unused: Any = SimpleNamespace()
    stop: Any = SimpleNamespace(received=None)
    clock = VirtualClock()
    around = Surroundings(stop, unused, clock)
    register = replace(REGISTER, device="cuda:1")
    loop = WorkerLoop(core, PeerLink(), GatewayLink(gateway, clock), register, around, lambda: None)

    with pytest.raises(WorkerBroken) as caught:
        loop.turn()
    assert caught.value.message == cause
    assert caught.value.at_device and caught.value.__cause__ is error
    assert [TO_GATEWAY.decode(open_envelope(raw).body) for raw in sent] == [Left("unified-0", 5)]


class Noted:
    """Any part of a worker: notes which of its methods are called."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls

    def __getattr__(self, method: str) -> Any:
        return lambda *_, **__: self._calls.append(f"{self._name}.{method}")


@pytest.mark.parametrize(
    "waits, expected",
    [
        (True, ["ranks.close", "link.close", "gateway.close", "executor.close", "security.close", "context.term"]),
        # link and executor would wait for the device, or for a forward that waits for another rank
        (False, ["ranks.close", "gateway.close", "security.close", "context.destroy"]),
    ],
)
def test_a_worker_closes_what_it_holds_but_waits_for_no_broken_device_or_group(
    waits: bool, expected: list[str]
) -> None:
    calls: list[str] = []
    parts: list[Any] = [Noted(name, calls) for name in ("link", "ranks", "gateway", "executor", "security", "context")]
    close_all(*parts, waits=waits)
    assert calls == expected


BREAKS = """
import sys
from scheduler.execution.streams import DeviceBroken
from protocol.messages_gateway import Role
from unified.start import build
from worker.boot import main
from worker.parts import PeerLink

class Link(PeerLink):
    def close(self):
        raise DeviceBroken("closing waits for the device")

def breaking(started):
    core, _, address = build(started)
    def step():
        raise DeviceBroken("CUDA error: device-side assert triggered")
    core.turn = step
    return core, Link(), address

main({Role.UNIFIED: breaking})
"""


@pytest.mark.slow
def test_the_process_of_a_broken_device_ends_with_the_cause_and_not_with_what_closing_would_say() -> None:
    wanted = WorkerSettings(
        worker_id="w",
        role=Role.UNIFIED,
        gateway="tcp://127.0.0.1:1",
        model="/m",
        max_total_tokens=256,
        fake_model=True,
    )
    command = [sys.executable, "-c", BREAKS, "--settings", wanted.to_json()]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_BROKEN, done.stderr
    assert "cpu cannot compute any more: CUDA error: device-side assert triggered" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr and "closing waits" not in done.stderr
