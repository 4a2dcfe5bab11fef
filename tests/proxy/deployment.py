"""`baton serve` with the model of hashes. Its workers reach one another and the gateway through proxies."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.doubles.hash_model import FakeRunner
from tests.e2e.baton_process import FAKE, PATIENCE_S, BatonProcess
from tests.faults.client import Client
from tests.faults.deployment import wait_until
from tests.proxy.proxy import Gate, Proxy, unchanged
from tests.proxy.relay import Relay

RUNNER = FakeRunner()
POOL_TOKENS = 1200
SMALL = f"--page-size 4 --chunked-prefill-size 48 --max-total-tokens {POOL_TOKENS}"
PATIENT = f"{SMALL} --silence-limit 60"  # a busy machine's heartbeats come late
Expected = Callable[[list[int], int], list[int]]  # of a prompt, so many tokens


def draw_prompts(rng: random.Random, count: int, longest: int = 200) -> list[list[int]]:
    return [[rng.randrange(RUNNER.vocab_size) for _ in range(rng.randint(1, longest))] for _ in range(count)]


class Proxied:
    """A deployment. Close it."""

    def __init__(self, folder: Path, model: Path, prefill: int, decode: int, *flags: str, worker: str = "") -> None:
        self.proxy = Proxy()
        self._relay = Relay(self.proxy, folder / "control")
        variables = {"FAKE_RELAY": self._relay.endpoint, "FAKE_CONTROL": str(folder / "control")}
        if worker:
            variables["FAKE_WORKER"] = worker
        argv = [str(model), "--port", "0", "--pairing", "round_robin", "--hang-limit", "0", *flags]
        argv += ["--prefill", str(prefill), "--decode", str(decode)]
        self.num_ways = prefill * decode
        try:
            self.baton = BatonProcess(*argv, log=folder / "log", program=FAKE, variables=variables, patient=False)
        except BaseException:
            self._close_proxies()
            raise

    # ---- requests ----

    def start(self, prompts: Sequence[list[int]], max_tokens: int, patience_s: float = PATIENCE_S) -> list[Client]:
        """Streams an answer to each; who hears nothing for so long leaves."""
        return [Client(self.baton.url, prompt, max_tokens, patience_s=patience_s).start() for prompt in prompts]

    def verdicts(self, clients: Sequence[Client], expected: Expected = RUNNER.expected_tokens) -> list[str]:
        """How each ended; an assertion error for a wrong token, or one that does not end."""
        assert all(client.has_ended() for client in clients), f"no end; {self.baton.log_text()[-3000:]}"
        return [client.verdict(expected) for client in clients]

    def expect_exact(self, prompts: Sequence[list[int]], max_tokens: int) -> None:
        """Each gets its tokens, all of them."""
        clients = self.start(prompts, max_tokens)
        verdicts = self.verdicts(clients)
        story = [client.error or client.cut for client in clients]
        assert set(verdicts) == {"exact"}, f"{verdicts}: {story}; {self.baton.log_text()[-3000:]}"

    # ---- what is counted and held ----

    def metric(self, name: str, **labels: str) -> float:
        """The sum of what /metrics shows under `name` with these labels, among others."""
        return self.baton.metric(name, **labels)

    def rejected(self, *reasons: str) -> float:
        """Frames that decode workers have refused, for one of these reasons if any are given."""
        name = "kv_transfer_rejected_frames_total"
        return sum(self.metric(name, reason=reason) for reason in reasons) if reasons else self.metric(name)

    def expect_rest(self) -> None:
        """Nothing is held anywhere, by the workers' own word of after this call; counters are of then, too."""
        held = [worker["kv_pages"] for worker in self.baton.workers()]
        assert self.baton.wait_for_rest(), f"no rest: {held}; {self.baton.log_text()[-3000:]}"

    def settle(self) -> None:
        """Ends all faults, and waits until every frame sent so far has been read and is counted in /metrics.

        A connection keeps order: one request over each pair of workers comes after whatever is still on its way.
        """
        self.clear()
        self.expect_exact([[number] * 5 for number in range(self.num_ways)], 9)
        self.expect_rest()

    def gates(self, kind: str) -> list[Gate]:
        """Of the workers that there are now; `kind` is "data" or "peer"."""
        role = {"data": "decode", "peer": "prefill"}[kind]
        return [self.proxy.gate(f"{kind} {worker['id']}") for worker in self.baton.workers() if worker["role"] == role]

    def clear(self) -> None:
        """No faults from here on."""
        for kind in ("data", "peer"):
            for gate in self.gates(kind):
                gate.next_cut = None
                for way in gate.tampers:
                    self.proxy.tamper(gate, way, unchanged)

    def is_whole(self, num_workers: int) -> bool:
        """Whether so many workers are members."""
        return wait_until(lambda: len(self.baton.workers()) == num_workers)

    def close(self) -> None:
        """Ends all of it, and asserts that nothing is left."""
        try:
            assert self.baton.end() == 0, self.baton.log_text()[-3000:]
        finally:
            self._close_proxies()

    def _close_proxies(self) -> None:
        self._relay.close()
        self.proxy.close()
