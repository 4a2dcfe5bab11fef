"""The page of `make gpu`, word for word."""

from bench.gpu.page import page
from bench.gpu.records import End, Goal, Machine, Note, Record, Row

FOUND: list[Record] = [
    Machine({"device": "NVIDIA H200", "date": "2026-11-22", "cores": 16}),
    Note("decode", "36 layers"),
    Row("decode", "A decode step", {"graphs": "yes", "ms": 4.5678, "bytes": 16_000_000_000, "share": None}, "In ms."),
    Row("decode", "A decode step", {"graphs": "no", "ms": 123.456, "bytes": 1, "share": 0.5}, "In ms."),
    Goal("decode", "batch 1", 0.71, "at least", 0.8, judged=True),
    Note("decode", "a | b\nc", fault=True),
    End("decode", "failed", 61.0, "a | b"),
    Goal("prefill", "2,048 tokens", 0.02, "at least", 0.6, judged=False),
    End("prefill", "ok", 2.0),
    End("serve", "not run", 0.0, "no time was left"),
]
WANTED = r"""### NVIDIA H200, 2026-11-22

cores 16.

| step | what came of it |
|---|---|
| decode | failed, 61 s; a \| b; 0 of 1 goals met; missed: batch 1: 0.71 (at least 0.8) |
| prefill | ok, 2 s |
| ipc | has not run |
| serve | not run: no time was left |

#### decode

- 36 layers

**A decode step.** In ms.

| graphs | ms | bytes | share |
|---|---:|---:|---:|
| yes | 4.57 | 16,000,000,000 | - |
| no | 123 | 1 | 0.5 |

- **missed**: batch 1: 0.71 (at least 0.8)

- **failed**: a \| b c

#### prefill

- 1 goal, not judged on a CPU
"""


def test_the_page_is_this() -> None:
    assert page(FOUND, ["decode", "prefill", "ipc", "serve"]) == WANTED


def test_a_page_of_nothing_says_so() -> None:
    assert page([], ["decode"]).splitlines() == [
        "### a machine, undated", "", "| step | what came of it |", "|---|---|", "| decode | has not run |",
    ]  # fmt: skip
