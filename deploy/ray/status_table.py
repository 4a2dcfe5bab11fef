"""`baton ray status`: Serve's replicas and the gateway's /workers in one table, an address, a command. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.sentences import PROMPT, curl

_HEAD = ("process", "node", "holder", "worker", "running", "waiting", "free pages")


@dataclass(frozen=True)
class Seen:
    """What was asked of Serve, of the gateway's holder, and of the gateway. What did not answer is empty."""

    application: str
    status: str  # of the application
    deployments: Mapping[str, tuple[str, Mapping[str, int], str]]  # name: its status, replicas by state, message
    holders: Sequence[Mapping[str, str]] = ()  # name, node, state, refused of each; the gateway's first
    http: str = ""
    workers: Sequence[Mapping[str, Any]] = ()  # /workers
    no_workers: str = ""  # why /workers did not answer
    model: str = ""


def status_lines(seen: Seen) -> list[str]:
    """The lines to print."""
    lines = [f"{seen.application}: {seen.status}"]
    for name, (status, replicas, message) in seen.deployments.items():
        counted = ", ".join(f"{count} {state.lower()}" for state, count in replicas.items() if count) or "no replica"
        lines.append(f"  {name}: {status.lower()}, {counted}")
        if message:
            lines.append(f"    {one_line(message)}")

    rows = table(seen)
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    if len(rows) > 1:
        lines += ["", *("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)]
    for holder in seen.holders:
        if holder.get("refused"):
            lines += ["", f"{holder['name']} keeps the flags that it has: {holder['refused']}"]
    if seen.no_workers:
        lines += ["", f"{seen.http}/workers: {seen.no_workers}"]
    if seen.http:
        model = {"model": seen.model} if seen.model else {}
        body: dict[str, object] = {**model, "prompt": PROMPT, "max_tokens": 64, "stream": True}
        lines += ["", f"Clients talk to {seen.http}. Try:", curl(seen.http, body)]
    return [line.rstrip() for line in lines]


def table(seen: Seen) -> list[tuple[str, ...]]:
    """A row for each process that a holder or the gateway knows. A rank is found by the name of its group."""
    rows: list[tuple[str, ...]] = [_HEAD]
    left = list(seen.workers)
    for holder in seen.holders:
        name = holder["name"]
        mine = [worker for worker in left if str(worker["id"]) == name or str(worker["id"]).startswith(f"{name}.")]
        left = [worker for worker in left if worker not in mine]
        rows += [_row(str(worker["id"]), holder, worker) for worker in mine] or [_row(name, holder, None)]
    return rows + [_row(str(worker["id"]), {}, worker) for worker in left]


def _row(name: str, holder: Mapping[str, str], worker: Mapping[str, Any] | None) -> tuple[str, ...]:
    seen = holder.get("node", "?"), holder.get("state", "no holder")
    if worker is None:
        return (name, *seen, "", "", "", "")
    pages = worker["kv_pages"]
    cells = f"{pages['free'] + pages['cached']} of {pages['total']}"
    return (name, *seen, "joined", str(worker["running"]), str(worker["waiting"]), cells)


def one_line(message: str) -> str:
    """What a message of Serve's says, in one line: of a Python trace the last one, else all of it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    ours = [line.removeprefix("RuntimeError: ") for line in lines if line.startswith("RuntimeError: ")]
    is_trace = any(line.startswith("Traceback") for line in lines)
    return (ours or (lines if is_trace else [" ".join(lines)]) or [""])[-1]
