"""An executor in another process, fed over a socket, serves what one in this process serves."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from protocol.messages_gateway import FinishReason, SamplingParams
from scheduler.plan import OPERATIONS, OUTCOMES, Operation, Outcome
from tests.decode.driving import VOCAB, Driven, greedy, prompt_of, reference
from tests.doubles.hash_model import FakeRunner
from tests.scheduler.executor_process import MAX_REQUESTS, NUM_PAGES, PAGE_SIZE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
GIVE_UP_MS = 120_000  # a child that says nothing for so long hangs


class Remote:
    """An executor at the other end of a socket."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self.num_submitted = 0
        self._socket = socket

    def submit(self, operation: Operation) -> None:
        self.num_submitted += 1
        self._socket.send(OPERATIONS.encode(operation))

    def poll(self) -> Sequence[Outcome]:
        outcomes = []
        while self._socket.poll(0):
            outcomes.append(OUTCOMES.decode(self._socket.recv()))
        return outcomes

    def wait(self) -> None:
        """Until there is something to poll."""
        assert self._socket.poll(GIVE_UP_MS), "the executor's process hangs"

    def end(self) -> None:
        """Ends the process. It must have nothing in flight, and nothing to say."""
        self._socket.send(b"")
        self.wait()
        assert self._socket.recv() == b""


@pytest.fixture
def remote() -> Iterator[Remote]:
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind("tcp://127.0.0.1:*")
        endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        command = [sys.executable, "-m", "tests.scheduler.executor_process", endpoint, str(os.getpid())]
        child = subprocess.Popen(command, cwd=ROOT)
        try:
            made = Remote(socket)
            yield made
            made.end()
            assert child.wait(GIVE_UP_MS / 1000) == 0
        finally:
            child.kill()
            child.wait()


@pytest.mark.parametrize("overlap", [True, False])
def test_requests_are_served_over_a_channel(remote: Remote, overlap: bool) -> None:
    runner = FakeRunner(vocab_size=VOCAB, context_length=64)
    cluster = Driven(
        runner,
        "1U",
        overlap=overlap,
        page_size=PAGE_SIZE,
        num_pages=NUM_PAGES,
        chunk_size=7,
        max_requests=MAX_REQUESTS,
        wrap=lambda executor: remote,
    )
    prompts = {
        name: prompt_of(name, length) for name, length in zip("abcdefgh", (3, 17, 5, 9, 1, 21, 6, 12), strict=True)
    }
    ends = reference(prompts["d"], greedy(20))[0]
    params: dict[str, SamplingParams] = {name: greedy(9) for name in prompts}
    params["c"] = greedy(1)
    params["d"] = replace(greedy(20), eos_token_ids=(ends[2],))
    params["e"] = replace(greedy(20), eos_token_ids=tuple(range(0, VOCAB, 2)), min_tokens=6)
    params["f"] = params["g"] = greedy(30)
    num_choices = {name: 3 if name in "bg" else 1 for name in prompts}

    def step() -> None:
        if not cluster.turn():
            remote.wait()

    def run_until(name: str, num_tokens: int) -> None:
        while len(cluster.answers[name, 0].ids) < num_tokens:
            step()

    for name in "abcd":
        cluster.ask(name, prompts[name], params[name], num_choices[name])
    run_until("a", 3)
    for name in "efgh":
        cluster.ask(name, prompts[name], params[name], num_choices[name])
    run_until("f", 4)
    cluster.cancel("f")
    run_until("g", 2)
    cluster.cancel("g", 1)
    while not cluster.at_rest():
        step()

    assert cluster.answers["e", 0].finish == FinishReason.STOP and len(cluster.answers["e", 0].ids) >= 6
    assert remote.num_submitted > cluster.unified.planner.num_launches  # page copies too
    cluster.expect_end("f", ("g", 1))
