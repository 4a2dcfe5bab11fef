"""KV between prefill and decode processes: written in place and as frames, into pages of another size, and what is left
of memory when one of the two is killed."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tests.e2e.answers import FLAGS, RUNNER, answers_of, draw_prompts, right_or_unavailable
from tests.e2e.baton_process import FAKE, BatonProcess
from tests.selecting import first

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("prefill", "decode", "backend"),
    first(3, [(4, 16, "zmq"), (16, 4, "auto"), (8, 16, "nixl"), (6, 10, "shm"), (4, 4, "zmq")]),
)
def test_every_token_is_right(fake_folder: Path, tmp_path: Path, prefill: int, decode: int, backend: str) -> None:
    if backend == "nixl" and not any(map(find_spec, ("nixl_cu12", "nixl_cu13"))):
        pytest.skip("the extra `nixl` is not installed")
    prompts = draw_prompts(prefill, 12)
    argv = [*FLAGS.split(), "--page-size", str(prefill), "--transfer-backend", backend]
    only_decode = {"FAKE_DECODE_PAGE_SIZE": str(decode)}
    with BatonProcess(str(fake_folder), *argv, log=tmp_path / "log", program=FAKE, variables=only_decode) as baton:
        assert {each["id"]: each["page_size"] for each in baton.workers()} == {"prefill-0": prefill, "decode-0": decode}
        assert answers_of(baton, prompts, 20) == [RUNNER.expected_tokens(prompt, 20) for prompt in prompts]
        assert baton.wait_for_rest()
        assert {host for each in baton.workers() for host in listens_at(each["pid"])} == {"127.0.0.1"}
        met = {each["id"]: each["transfer"] for each in baton.workers()}
        assert met == {"prefill-0": {}, "decode-0": {"prefill-0": "shm" if backend == "auto" else backend}}


def listens_at(pid: int) -> set[str]:
    """The hosts of a process's listening sockets."""
    return {each.laddr.ip for each in psutil.Process(pid).net_connections("tcp") if each.status == "LISTEN"}


def memory_of(pid: int) -> set[str]:
    """The inodes of KV memory that a process maps; none if it has ended."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return set(re.findall(r" (\d+) +/memfd:baton-kv", maps))


@pytest.mark.broad
@pytest.mark.parametrize("victim", ["decode-0", "prefill-0"])
def test_memory_of_a_worker_that_is_killed_is_given_back(fake_folder: Path, tmp_path: Path, victim: str) -> None:
    prompts = draw_prompts(1, 4)
    argv = [*FLAGS.split(), *"--page-size 4 --transfer-backend shm".split()]
    with BatonProcess(str(fake_folder), *argv, log=tmp_path / "log", program=FAKE) as baton:
        assert answers_of(baton, prompts[:1], 5) == [RUNNER.expected_tokens(prompts[0], 5)]
        prefill, decode = baton.worker("prefill-0"), baton.worker("decode-0")
        (lent,) = memory_of(decode.pid)
        own = memory_of(prefill.pid) - {lent}
        assert len(own) == 1 and lent in memory_of(prefill.pid)
        killed, is_hit = baton.worker(victim), threading.Event()

        def keep_asking(prompt: list[int]) -> bool:
            """Until the worker was killed: one request may be over before anybody has seen it."""
            found = [right_or_unavailable(baton, prompt)]
            while not is_hit.is_set():
                found.append(right_or_unavailable(baton, prompt))
            return all(found)

        with ThreadPoolExecutor(4) as clients:
            answers = [clients.submit(keep_asking, prompt) for prompt in prompts]
            try:
                assert baton.wait_for_work()
                killed.kill()
            finally:
                is_hit.set()
            assert all(answer.result() for answer in answers)
        assert baton.wait_for_return(victim, killed.pid)
        assert answers_of(baton, prompts, 20) == [RUNNER.expected_tokens(prompt, 20) for prompt in prompts]
        assert baton.wait_for_rest()  # nothing is quarantined
        dead = {lent} if victim == "decode-0" else own
        assert baton.wait_until(lambda: not any(dead & memory_of(each.pid) for each in baton.children()))
