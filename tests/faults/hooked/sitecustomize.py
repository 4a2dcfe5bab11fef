"""Phase hooks: with this folder on PYTHONPATH every Python process runs this file before anything else.

It wraps the functions where a phase of a request's life begins. When the armed phase begins for the marked request, the
hook writes a proof. Then it sends the signal, or holds the process until the test lets go.

    test --armed.json--> hook --renames it to fired.json (one process wins)--> proof.json --> signal | wait for go

It imports nothing of the project by itself.
"""

import importlib.abc
import importlib.machinery
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = os.environ.get("PHASE_HOOKS_FOLDER", "")
DECODING_SEQ = 5  # "decoding" begins with this token, unless the test names another one
HOLD_S = 3.5  # below the silence after which a worker is lost; a test may name another time
ACTED_S = 1.0


# ---- firing ----


def reached(phase: str, prompt_ids: Sequence[int], *, num_outputs: int = 0, attempt: int = 0, **workers: str) -> None:
    """`phase` begins for the request with this prompt on these workers (ids by role): fires if that is armed. With
    `num_outputs` tokens it is decoding; a test that names their number means any attempt, else it is the first one."""
    folder = Path(FOLDER)
    try:
        armed = json.loads((folder / "armed.json").read_text())
        if armed["phase"] != phase or list(prompt_ids[: len(armed["marker"])]) != armed["marker"]:
            return
        if phase == "decoding" and not _is_far_enough(armed.get("num_outputs"), num_outputs, attempt):
            return
        (folder / "armed.json").rename(folder / "fired.json")
    except FileNotFoundError:
        return  # nothing is armed, or another process was quicker
    victim = workers.get(armed["victim"], armed["victim"])
    pid = armed["pids"].get(victim, 0)  # 0: it was started again since, and nobody can be sent a signal
    assert pid or not armed["signal"], f"{victim} is none of {armed['pids']}"
    proof = {"phase": phase, "at": time.monotonic(), "by": os.getpid(), "victim": victim, "pid": pid}
    (folder / "proof.part").write_text(json.dumps(proof))
    (folder / "proof.part").rename(folder / "proof.json")
    if armed["signal"]:
        os.kill(pid, armed["signal"])
        if pid != os.getpid():  # our own acts at once
            _wait(lambda: _has_acted(pid, armed["signal"]), ACTED_S)
    elif not _wait((folder / "go").exists, armed.get("hold_s", HOLD_S)):
        (folder / "hold-is-over").touch()


def _is_far_enough(wanted: int | None, num_outputs: int, attempt: int) -> bool:
    return attempt == 0 and num_outputs >= DECODING_SEQ if wanted is None else num_outputs >= wanted


def _wait(what: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        select.select([], [], [], 0.001)
    return True


def _has_acted(pid: int, number: int) -> bool:
    """Whether the process has stopped or ended, or, for a signal that it handles, has taken it."""
    try:
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except (FileNotFoundError, ProcessLookupError):
        return True
    if number == signal.SIGSTOP:
        return status["State"][0] in "TtZX"
    if status["State"][0] in "ZX":
        return True
    pending = int(status["ShdPnd"], 16) | int(status["SigPnd"], 16)
    return number != signal.SIGKILL and not pending >> (number - 1) & 1


def _own(key: str) -> str:
    """A worker's setting ("worker_id", "role"), by our command line; "" in other processes."""
    for flag, value in zip(sys.orig_argv, sys.orig_argv[1:], strict=False):
        if flag == "--settings":
            return str(json.loads(value).get(key, ""))
    return ""


# ---- where phases begin ----


def _gateway_control(module: ModuleType) -> None:
    def before(control: Any, key: Any, message: Any, session_number: int = 0) -> None:
        if type(message).__name__ == "Assign" and message.attempt == 0:
            pair = {"decode": key.worker_id, "prefill": message.prefill.worker_id} if message.prefill else {}
            reached("queued", message.prompt_ids, **pair or {"unified": key.worker_id})

    _wrap(module.Control, "_send", before)


PREFILL_OF: dict[str, str] = {}  # on a decode worker, by request id: that of its latest attempt here


def _decode_requests(module: ModuleType) -> None:
    phases = {"RUNNING": "prebuilt", "FINISHED": "finishing"}
    name = _own("worker_id")

    def before(request: Any, state: Any) -> None:
        if request.assign.attempt == 0 and state.name in phases:
            reached(phases[state.name], request.assign.prompt_ids, prefill=request.prefill.worker_id, decode=name)

    def after(is_reserved: bool, requests: Any, request: Any, *_: Any) -> None:
        if is_reserved:
            PREFILL_OF[request.assign.request_id] = request.prefill.worker_id
        if is_reserved and request.assign.attempt == 0:
            reached("reserving", request.assign.prompt_ids, prefill=request.prefill.worker_id, decode=name)

    _wrap(module.DecodeRequest, "move", before)
    _wrap(module.Requests, "_reserve", lambda *_: None, after)


def _token_stream(module: ModuleType) -> None:
    name, role = _own("worker_id"), _own("role")

    def before(stream: Any, req: Any, *_: Any) -> None:
        prefill = PREFILL_OF.get(req.request_id, "")
        workers = {"unified": name} if role == "unified" else {"decode": name, "prefill": prefill}
        reached("decoding", req.prompt_ids, num_outputs=len(req.outputs), attempt=req.attempt, **workers)
        if req.attempt == 0 and role == "unified" and len(req.outputs) == req.sampling.max_tokens - 1:
            reached("finishing", req.prompt_ids, unified=name)

    _wrap(module.TokenStream, "add", before)


SENDING: dict[Any, tuple[Sequence[int], str]] = {}  # on a prefill worker, by target: the prompt and the decode worker


def _prefill_worker(module: ModuleType) -> None:
    name = _own("worker_id")

    def before(worker: Any) -> None:
        for job in worker.prompts.computing:
            if job.assign.attempt == 0:
                SENDING[job.destination] = job.assign.prompt_ids, job.destination.peer.worker_id

    def after(has_launched: bool, worker: Any) -> None:
        for chunk in worker.planner.in_flight[-1].chunks if has_launched else ():
            job = worker.served.of.get(chunk.req)
            if job is not None and chunk.start > 0 and job.assign.attempt == 0:
                reached("prefilling", job.assign.prompt_ids, prefill=name, decode=job.destination.peer.worker_id)

    _wrap(module.PrefillWorker, "launch", before, after)


def _unified_worker(module: ModuleType) -> None:
    name = _own("worker_id")

    def after(has_launched: bool, worker: Any) -> None:
        for chunk in worker.planner.in_flight[-1].chunks if has_launched else ():
            if chunk.start > 0 and chunk.req.attempt == 0:
                reached("prefilling", chunk.req.prompt_ids, unified=name)

    _wrap(module.UnifiedWorker, "launch", lambda *_: None, after)


def _transfer_sending(module: ModuleType) -> None:
    name, sent_pages = _own("worker_id"), dict[Any, int]()

    def note(phase: str, target: Any) -> None:
        if target in SENDING:
            prompt_ids, decode = SENDING[target]
            reached(phase, prompt_ids, prefill=name, decode=decode)

    def before(sender: Any, instance: int, transfer: Any, frame: Any) -> None:
        if not isinstance(frame, module.KvFrame):
            note("last frame", transfer.destination)

    def after(was_sent: Any, sender: Any, instance: int, transfer: Any, frame: Any) -> None:
        if not was_sent or not isinstance(frame, module.KvFrame):
            return
        sent = sent_pages[transfer.destination] = sent_pages.get(transfer.destination, 0) + frame.num_pages
        total = len(transfer.source_pages) * sender._layout.num_layers
        if sent == frame.num_pages:
            note("first frame", transfer.destination)
        elif 2 * sent >= total > 2 * (sent - frame.num_pages):
            note("middle frame", transfer.destination)

    _wrap(module.FrameSender, "_send", before, after)


def _fake_model(module: ModuleType) -> None:
    """While broken.json names this process, every forward raises. Each writes a line of proof."""
    folder = Path(FOLDER)

    def before(*_: Any) -> None:
        try:
            is_meant = json.loads((folder / "broken.json").read_text()) == os.getpid()
        except FileNotFoundError:
            return
        if is_meant:
            with (folder / "raised").open("a") as proof:
                proof.write(f"{os.getpid()}\n")
            raise RuntimeError("every forward of this process fails")

    for name in ("forward", "forward_with_features"):  # the second one with a draft
        _wrap(module.FakeRunner, name, before)


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "gateway.routing.control": _gateway_control,
    "decode.requests": _decode_requests,
    "worker.requests": _token_stream,
    "model.fake": _fake_model,
    "prefill.worker": _prefill_worker,
    "transfer.sending.frame_sender": _transfer_sending,
    "unified.worker": _unified_worker,
}


def _wrap(owner: type, name: str, before: Callable[..., None], after: Callable[..., None] = lambda *_: None) -> None:
    """Replaces a method; AttributeError, and so a process that cannot start, where the product has it no more."""
    inner = getattr(owner, name)

    def outer(*args: Any, **more: Any) -> Any:
        before(*args, **more)
        result = inner(*args, **more)
        after(result, *args, **more)
        return result

    setattr(owner, name, outer)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of PATCHES as usual, and patches them once they are loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target) if fullname in PATCHES else None
        if spec is not None and spec.loader is not None:
            inner = spec.loader.exec_module

            def load(module: ModuleType) -> None:
                inner(module)
                PATCHES[fullname](module)

            spec.loader.exec_module = load  # type: ignore[method-assign]
        return spec


if FOLDER:
    sys.meta_path.insert(0, _Finder())
