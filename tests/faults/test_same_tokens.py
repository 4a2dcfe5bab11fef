"""Models with experts give the same tokens alone, 16 at once, on a pair, and when its decode worker is killed.

In float32 the C code gives a token the same bits in any launch. So every token counts here, whatever its margin.
"""

import json
import random
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testkit.checkpoints import OF_EXPERTS, Architecture
from testkit.reference import VOCAB_SIZE, reference
from tests.e2e.baton_process import BatonProcess
from tests.faults.arming import Arming
from tests.faults.deployment import state_of
from tests.selecting import broad, full

AT_ONCE = 16
LONGEST_PROMPT, MOST_TOKENS = 120, 48
NUM_WAVES = 4  # in each the decode worker is killed once
FLAGS = "--port 0 --dtype float32 --max-total-tokens 8192 --retry-wait 600"
ALONE = "--prefill 0 --decode 0 --unified 1 --page-size 1 --chunked-prefill-size 0"
PAIR = "--prefill 1 --decode 1 --page-size 16 --chunked-prefill-size 32"


@dataclass(frozen=True)
class Request:
    """A prompt, and how its answer is drawn."""

    prompt: tuple[int, ...]
    drawn: dict[str, Any]


def random_requests(arch: Architecture, count: int) -> list[Request]:
    """Prompts of all lengths, with greedy and seeded answers in turn. Those that end a wave's first half are long
    enough for a kill in their middle."""
    rng = random.Random(f"{arch} {count}")
    drawn = []
    for index in range(count):
        prompt = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, LONGEST_PROMPT)))
        how: dict[str, Any] = {"max_tokens": rng.randint(8, MOST_TOKENS), "temperature": 0}
        if index % 2:
            how |= {"temperature": 1.0, "top_p": 0.95, "seed": index}
        drawn.append(Request(prompt, how))
    for index in victims(count):
        drawn[index] = Request(drawn[index].prompt, drawn[index].drawn | {"max_tokens": MOST_TOKENS})
    return drawn


def victims(count: int) -> list[int]:
    """The request in the middle of each wave."""
    size = count // NUM_WAVES
    return [wave * size + size // 2 for wave in range(NUM_WAVES)]


def answers_of(baton: BatonProcess, requests: Sequence[Request], at_once: int) -> list[list[int]]:
    """The tokens of each, with so many clients."""
    with ThreadPoolExecutor(at_once) as clients:
        return list(clients.map(lambda each: baton.tokens(each.prompt, ignore_eos=True, **each.drawn), requests))


def killed_answers(baton: BatonProcess, requests: Sequence[Request], arming: Arming) -> list[list[int]]:
    """The same in waves. In each, the decode worker is killed when its victim has some tokens, and begins again."""
    size, answers = len(requests) // NUM_WAVES, list[list[int]]()
    for wave, victim in enumerate(victims(len(requests))):
        old, num_retried = baton.worker("decode-0"), baton.metric("request_retries_total", reason="worker_lost")
        arming.arm("decoding", requests[victim].prompt, "decode", signal.SIGKILL, {"decode-0": old.pid})
        answers += answers_of(baton, requests[wave * size : (wave + 1) * size], AT_ONCE)

        proof = json.loads((arming.folder / "proof.json").read_text())
        assert proof["phase"] == "decoding" and proof["pid"] == old.pid
        assert state_of(old.pid) in "XZ" or not old.is_running(), "the decode worker survives SIGKILL"
        assert baton.wait_for_return("decode-0", old.pid)
        assert baton.metric("request_retries_total", reason="worker_lost") > num_retried, "nobody needed it"
    assert baton.metric("workers_lost_total") == NUM_WAVES
    return answers


@pytest.mark.parametrize(
    ("arch", "count"),
    [broad(("glm4_moe", 32)), *(full((arch, 200)) for arch in OF_EXPERTS)],
)
def test_tokens_are_those_of_each_request_alone(arch: Architecture, count: int, tmp_path: Path) -> None:
    requests, arming = random_requests(arch, count), Arming(tmp_path / "hooks")
    argv = ["serve", "--model", str(reference(arch).folder), *FLAGS.split()]
    with BatonProcess(*argv, *ALONE.split(), log=tmp_path / "alone.log") as baton:
        alone = answers_of(baton, requests, 1)
        assert answers_of(baton, requests, AT_ONCE) == alone, "in a batch"
        assert baton.wait_for_rest()
    assert [len(answer) for answer in alone] == [each.drawn["max_tokens"] for each in requests]

    with BatonProcess(*argv, *PAIR.split(), log=tmp_path / "pair.log", variables=arming.variables) as baton:
        assert answers_of(baton, requests, AT_ONCE) == alone, "on a pair"
        assert killed_answers(baton, requests, arming) == alone, "on a pair whose decode worker is killed"
        assert baton.wait_for_rest()
