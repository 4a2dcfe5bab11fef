"""Groups of ranks that share experts, as real processes: greedy tokens are those of transformers, whatever happens.

A combination names what happens meanwhile. Each test asserts that it has happened.
"""

import json
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from testkit.reference import NUM_TOKENS, PROMPT_LENS, Reference, reference
from tests.e2e.baton_process import BatonProcess
from tests.faults.arming import Arming
from tests.parity.grid import GROUPED_EACH_VALUE, GROUPED_PAIRWISE, Grouped
from tests.selecting import broad, full

BROAD = [each for each in GROUPED_EACH_VALUE if each.event in ("cached", "killed") and each.arch != "glm4_moe"]
MARKED = [broad(each) if each in BROAD else full(each) for each in GROUPED_PAIRWISE]
MANY, FEW = 2048, (max(PROMPT_LENS) + NUM_TOKENS + 15) // 16 * 16  # tokens of KV: for all, and for the longest alone
MOST_WAVES = 20
PHASES = {"unified": "decoding", "prefill": "first frame", "decode": "decoding", "both": "decoding"}  # of a kill


def flags_of(combination: Grouped) -> list[str]:
    """The flags of `baton serve` that make this combination."""
    counts = "--prefill 0 --decode 0 --unified 1" if combination.topology == "1U" else "--prefill 1 --decode 1"
    sizes = {"prefill": "--prefill-dp-size", "decode": "--decode-dp-size"}.get(combination.group, "--dp-size")
    num_tokens = FEW if combination.event == "preempted" else MANY
    flags = f"{counts} {sizes} {combination.num_ranks} --max-total-tokens {num_tokens}"
    flags += f" --page-size {combination.page_size} --chunked-prefill-size {combination.chunk_size}"
    flags += "" if combination.overlap else " --disable-overlap-schedule"
    flags += "" if combination.event == "cached" else " --pairing round_robin"
    return flags.split()


def check(baton: BatonProcess, expected: Reference, times: int = 1) -> None:
    """All prompts at once, each so many times."""
    prompts, continuations = expected.prompts * times, expected.continuations * times
    with ThreadPoolExecutor(len(prompts)) as clients:
        answers = clients.map(lambda prompt: baton.tokens(prompt, max_tokens=NUM_TOKENS, temperature=0), prompts)
        for index, (answer, continuation) in enumerate(zip(answers, continuations, strict=True)):
            assert tuple(answer) == continuation, f"prompt {index}"


def check_with_event(baton: BatonProcess, expected: Reference, combination: Grouped, arming: Arming) -> None:
    """The same while the event happens, and it has happened."""
    match combination.event:
        case "none":
            check(baton, expected)
        case "cached":
            for _ in range(MOST_WAVES):  # a prompt may meet ranks that do not have it, one after the other
                check(baton, expected)
                if baton.metric("cached_prompt_tokens_total"):
                    return
            pytest.fail("nothing was cached")
        case "preempted":
            for _ in range(MOST_WAVES):
                check(baton, expected, 2)
                if baton.metric("request_retries_total", reason="retracted"):
                    return
            pytest.fail("the pool is too large to show anything")
        case "killed":
            check_with_kill(baton, expected, combination, arming)


def check_with_kill(baton: BatonProcess, expected: Reference, combination: Grouped, arming: Arming) -> None:
    """The rank that has the longest prompt is killed, its group ends and returns, and no client notices. Nothing is
    cached yet, so a prefill rank has frames to send."""
    processes = {row["id"]: psutil.Process(row["pid"]) for row in baton.workers()}
    role = "decode" if combination.group == "both" else combination.group
    pids: dict[str, int] = {name: process.pid for name, process in processes.items()}
    arming.arm(PHASES[combination.group], expected.prompts[-1], role, signal.SIGKILL, pids)
    check(baton, expected)

    proof = json.loads((arming.folder / "proof.json").read_text())
    group = proof["victim"].rpartition(".")[0]
    lost = [process for name, process in processes.items() if name.startswith(f"{group}.")]
    assert group.startswith(role) and len(lost) == combination.num_ranks
    assert all(baton.wait_for_return(f"{group}.{rank}", process.pid) for rank, process in enumerate(lost))
    assert not any(process.is_running() for process in lost), "its group survives it"
    assert baton.metric("request_retries_total") > 0


def idle_launches(baton: BatonProcess) -> Sequence[int]:
    """By worker."""
    return [row["idle_launches"] for row in baton.workers()]


@pytest.mark.parametrize("combination", MARKED, ids=str)
def test_greedy_tokens_are_those_of_transformers(combination: Grouped, tmp_path: Path) -> None:
    """Prompts of several lengths at once, so ranks have work of different sizes, and none."""
    expected, arming = reference(combination.arch), Arming(tmp_path / "hooks")
    argv = ["serve", "--model", str(expected.folder), "--port", "0", "--dtype", "float32", "--enable-dp-attention"]
    argv += ["--retry-wait", "600", *flags_of(combination)]
    with BatonProcess(*argv, log=tmp_path / "log", variables=arming.variables) as baton:
        check_with_event(baton, expected, combination, arming)
        alone = baton.tokens(expected.prompts[-1], max_tokens=NUM_TOKENS, temperature=0)
        assert tuple(alone) == expected.continuations[-1], "with idle ranks"
        assert sum(idle_launches(baton)) > 0, "no rank was ever idle"
        assert baton.wait_for_rest()
