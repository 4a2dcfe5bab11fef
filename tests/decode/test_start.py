from types import SimpleNamespace
from typing import Any

import pytest

from decode import start as process


def test_a_process_starts_with_a_number_that_nobody_can_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and instances of workers are no secret: `/workers` shows them."""
    starts: list[int] = []

    def worker(*_parts: Any, reservations_from: int, **_options: Any) -> Any:
        starts.append(reservations_from)
        return SimpleNamespace(outbox=None, on_peer=None, on_session_lost=None)

    monkeypatch.setattr(process, "open_receiver", lambda *_parts: SimpleNamespace(address="tcp://127.0.0.1:1"))
    monkeypatch.setattr(process, "DecodeWorker", worker)
    monkeypatch.setattr(process, "PrefillLink", lambda *_parts: None)
    parts: Any = SimpleNamespace(
        settings=SimpleNamespace(
            transfer_backend="zmq",
            host="127.0.0.1",
            worker_id="d",
            disable_overlap_schedule=False,
            speculative_pair_without_draft=False,
        ),
        planner=None,
        kv=SimpleNamespace(device=SimpleNamespace(type="cpu")),
        **dict.fromkeys(("context", "data_security", "security", "fingerprint", "clock", "identity", "policies")),
        instance=7,
    )
    for _ in range(8):
        process.build(parts)
    assert len(set(starts)) == 8 and 2**56 <= max(starts) < 2**62
