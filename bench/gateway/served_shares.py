"""`python -m bench.gateway.served_shares`: which part of the requests each worker of a real deployment gets.

`baton serve --prefill 2 --decode 2` with the fake model serves requests with one prefix, after a first one. Then the
prefill worker that has computed most is killed, and the requests after its return are counted, too.
"""

import argparse
import json
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from runtime.settings import Pairing
from tests.e2e.baton_process import FAKE, BatonProcess

CONTEXT, VOCABULARY = 4096, 997
NUM_REQUESTS, NUM_OUTPUTS, NUM_REST = 160, 16, 32
COMPUTED = re.compile(r'^baton_request_(prefill)_time_seconds_count\{.*?worker="([^"]+)".*\} (\S+)$', re.MULTILINE)


def computed(baton: BatonProcess) -> Counter[str]:
    """How many prompts each prefill worker has computed since its start, by its own word."""
    assert baton.wait_for_rest()
    found = COMPUTED.findall(baton.http.get("/metrics").text)
    return Counter({worker: int(float(number)) for _, worker, number in found if worker.startswith("prefill")})


def ask(baton: BatonProcess, prefix: Sequence[int], rng: Random, num_requests: int, at_a_time: int) -> float:
    """Sends requests, and returns the part of their prompt tokens that was cached."""
    prompts = [[*prefix, *rng.choices(range(1, VOCABULARY), k=NUM_REST)] for _ in range(num_requests)]

    def cached(prompt: list[int]) -> int:
        usage = baton.complete(prompt=prompt, max_tokens=NUM_OUTPUTS, ignore_eos=True)["usage"]
        return int((usage["prompt_tokens_details"] or {}).get("cached_tokens", 0))

    with ThreadPoolExecutor(at_a_time) as pool:
        return sum(pool.map(cached, prompts)) / sum(map(len, prompts))


def shares(later: Counter[str], earlier: Counter[str]) -> str:
    """The part of each worker."""
    counts = {worker: number - earlier[worker] for worker, number in sorted(later.items())}
    return ", ".join(f"{worker} {number} ({number / sum(counts.values()):.2f})" for worker, number in counts.items())


def measure(folder: Path, pairing: Pairing, num_prefix: int, at_a_time: int) -> None:
    """Prints the shares of one deployment."""
    argv = ("--port", "0", "--prefill", "2", "--decode", "2", "--pairing", pairing, "--max-total-tokens", "65536")
    rng = Random(num_prefix + at_a_time)
    prefix = rng.choices(range(1, VOCABULARY), k=num_prefix)
    with BatonProcess(str(folder), *argv, log=folder / "log", program=FAKE) as baton:
        ask(baton, prefix, rng, 1, 1)
        before = computed(baton)
        cached = ask(baton, prefix, rng, NUM_REQUESTS, at_a_time)
        after = computed(baton)
        name = f"{pairing}, prefix of {num_prefix}, {at_a_time} at a time"
        print(f"{name}: {shares(after, before)}; cached {cached:.3f}")

        [(killed, _)] = (after - before).most_common(1)
        process = baton.worker(killed)
        process.kill()
        ask(baton, prefix, rng, 1, 1)  # so the other one has the prefix, and the killed one comes back without it
        assert baton.wait_for_return(killed, process.pid)
        survivor = Counter({worker: number for worker, number in computed(baton).items() if worker != killed})
        cached = ask(baton, prefix, rng, NUM_REQUESTS, at_a_time)
        print(f"  after {killed} was killed and is back: {shares(computed(baton), survivor)}; cached {cached:.3f}")


def main() -> None:
    """All sizes under both rules."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway.served_shares", description=__doc__)
    parser.add_argument("--prefix", type=int, nargs="*", default=[512, 1800], help="tokens (default 512 1800)")
    parser.add_argument("--at-a-time", type=int, nargs="*", default=[4, 32], help="clients (default 4 32)")
    args = parser.parse_args()
    rules: tuple[Pairing, ...] = ("prefix_aware", "least_loaded")
    for num_prefix in args.prefix:
        for at_a_time in args.at_a_time:
            for pairing in rules:
                with tempfile.TemporaryDirectory(prefix="baton-shares-") as folder:
                    config = {"max_position_embeddings": CONTEXT, "vocab_size": VOCABULARY}
                    (Path(folder) / "config.json").write_text(json.dumps(config))
                    measure(Path(folder), pairing, num_prefix, at_a_time)


if __name__ == "__main__":
    main()
