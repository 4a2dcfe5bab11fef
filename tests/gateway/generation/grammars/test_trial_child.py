"""The process that tries grammars, as the gateway uses it: real processes, which jobs kill."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.generation.grammars import trial_child
from gateway.generation.grammars.texts import MAX_RULES
from gateway.generation.grammars.trial_child import TrialChild, trial_command
from gateway.words.request import Grammar
from models.train.train import STORY_FOLDER
from protocol.errors import BadRequest, Overloaded
from protocol.grammar import MAX_GRAMMAR_CHARS
from runtime.log import LineFormatter

GOOD = Grammar("regex", "[a-z]{2,9}")
NAMES = "\n".join(f"a{place}: a{place + 1}" for place in range(MAX_RULES - 2))
CHAIN = Grammar("ebnf", f'start: a0\n{NAMES}\na{MAX_RULES - 2}: "x"')
WITH_A_SMALL_STACK = """
import sys
from runtime import native_stack
native_stack.STACK_BYTES = 1 << 20
from gateway.generation.grammars.trial_process import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def child() -> Iterator[TrialChild]:
    made = TrialChild(trial_command(Path(STORY_FOLDER), 1024))
    yield made
    made.close()


@pytest.fixture
def fragile() -> Iterator[TrialChild]:
    """One whose stack is too small for a chain of names. No grammar is known that kills one with the usual stack."""
    made = TrialChild((sys.executable, "-c", WITH_A_SMALL_STACK, str(STORY_FOLDER), "1024"))
    yield made
    made.close()


def refused(found: str | BadRequest) -> str:
    assert isinstance(found, BadRequest), found
    assert "\n" not in found.message and len(found.message) < 450
    return found.message


@pytest.mark.slow
def test_one_process_takes_job_after_job(child: TrialChild) -> None:
    assert isinstance(child.check(GOOD), str)
    pid = child.pid
    told = refused(child.check(Grammar("regex", "(")))
    assert told.startswith("shape.source: cannot be followed")
    assert isinstance(child.check(GOOD), str) and child.pid == pid and child.num_starts == 1


@pytest.mark.slow
def test_a_grammar_that_kills_the_process_is_refused_with_the_signal_and_the_next_one_gets_another(
    fragile: TrialChild,
) -> None:
    assert isinstance(fragile.check(GOOD), str)
    told = refused(fragile.check(CHAIN))
    assert told == "shape.source: cannot be followed: it ended the process that tried it (SIGSEGV)"
    assert fragile.pid is None
    assert isinstance(fragile.check(GOOD), str) and fragile.num_starts == 2


@pytest.mark.slow
def test_chains_of_names_as_long_as_a_grammar_may_be_do_not_reach_the_end_of_the_stack(child: TrialChild) -> None:
    """Some 3 KB of stack for a name. The library's usual stack ends after 3,000 of them."""
    num = MAX_RULES - 2
    rules = "\n".join(f'a{place}: "y" a{place + 1}' for place in range(num))
    assert isinstance(child.check(Grammar("ebnf", f'start: a0\n{rules}\na{num}: "x"')), str)

    num = (MAX_GRAMMAR_CHARS - 2000) // 40
    names = [f"d{place}" for place in range(num)]
    defs = {name: {"$ref": f"#/$defs/{after}"} for name, after in zip(names, [*names[1:], "last"], strict=True)}
    schema = {"$defs": {**defs, "last": {"type": "integer"}}, "$ref": "#/$defs/d0"}
    assert isinstance(child.check(Grammar("json", schema)), str)
    assert child.num_starts == 1


READY = "import os, signal; os.write(1, bytes(4)); os.read(0, 1); "


def ending(how: str) -> TrialChild:
    """A process that is ready, and does this when it gets a job."""
    return TrialChild((sys.executable, "-c", READY + how))


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL"])
def test_a_death_by_the_job_is_told_and_not_tried_again(name: str) -> None:
    child = ending(f"signal.signal(signal.{name}, signal.SIG_DFL); os.kill(os.getpid(), signal.{name})")
    assert refused(child.check(GOOD)).endswith(f"cannot be followed: it ended the process that tried it ({name})")
    assert child.num_starts == 1 and child.pid is None


def test_work_without_an_end_is_ended_by_the_kernel() -> None:
    child = ending("signal.setitimer(signal.ITIMER_PROF, 0.01)\nwhile True: pass")
    assert refused(child.check(GOOD)).endswith("it takes more than 5 s of work to try") and child.num_starts == 1


def test_two_processes_that_end_by_themselves_refuse_the_grammar() -> None:
    child = ending("pass")
    assert refused(child.check(GOOD)).endswith("two processes that tried it have ended") and child.num_starts == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_two_processes_that_are_killed_from_outside_blame_no_grammar(number: int) -> None:
    """Memory may be short: the request may be tried again, and nothing is remembered."""
    child = ending(f"os.kill(os.getpid(), {int(number)})")
    with pytest.raises(Overloaded, match="were killed; try again"):
        child.check(GOOD)
    assert child.num_starts == 2


def test_a_gateway_that_stops_starts_no_other_process() -> None:
    child = ending("signal.pause()")
    child.start()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(child.check, GOOD)
        child.stop()
        with pytest.raises(Overloaded, match="is stopping"):
            asking.result()
    assert child.num_starts == 1 and child.pid is None


def test_a_process_without_an_answer_is_killed_and_the_request_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = ending("signal.pause()")
    child.start()
    pid = child.pid
    monkeypatch.setattr(trial_child, "WAIT_S", 0.05)
    with pytest.raises(Overloaded, match=r"was silent for 0\.05 s; try again"):
        child.check(GOOD)
    assert not Path(f"/proc/{pid}").exists() and child.pid is None


@pytest.mark.slow
def test_a_process_that_is_killed_from_outside_blames_no_grammar(child: TrialChild) -> None:
    assert isinstance(child.check(GOOD), str)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    assert isinstance(child.check(GOOD), str) and child.num_starts == 2


def test_an_interrupt_from_the_terminal_does_not_reach_it_from_its_first_moment_on() -> None:
    mask, child = signal.pthread_sigmask(signal.SIG_BLOCK, ()), ending("signal.pause()")
    child.start()
    [line] = [line for line in Path(f"/proc/{child.pid}/status").read_text().splitlines() if line.startswith("SigBlk")]
    child.close()
    assert int(line.split()[1], 16) & 1 << signal.SIGINT - 1
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask, "this thread's is as before"


@pytest.mark.parametrize(
    "command, why",
    [((sys.executable, "-c", "pass"), "has ended at its start"), (("/",), "cannot be started: Permission")],
)
def test_a_process_that_cannot_be_prepared_is_told_in_the_log(
    command: tuple[str, ...], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    child = TrialChild(command)
    child.prepare()
    [record] = caplog.records
    line = LineFormatter("gateway").format(record)
    assert " warning gateway no process to try grammars why=" in line and why in line
    with pytest.raises(Overloaded, match=why):
        child.check(GOOD)
    caplog.clear()
    child.stop()
    child.prepare()
    assert not caplog.records, "a gateway that stops needs none"


@pytest.mark.slow
def test_memory_that_a_job_takes_is_bounded(child: TrialChild) -> None:
    child.start()
    limits = Path(f"/proc/{child.pid}/limits").read_text()
    [line] = [line for line in limits.splitlines() if line.startswith("Max address space")]
    assert 1 << 30 < int(line.split()[3]) < 4 << 30
    assert Path(f"/proc/{child.pid}/oom_score_adj").read_text() == "1000\n", "where memory is short, it ends first"


@pytest.mark.slow
def test_it_ends_when_the_thread_that_started_it_does() -> None:
    """So it ends with the gateway, however that ends. The kernel takes the thread for its parent."""
    child = TrialChild(trial_command(Path(STORY_FOLDER), 1024))
    thread = threading.Thread(target=child.start)
    thread.start()
    thread.join()
    assert child.pid is not None
    status = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert status is not None and status.si_status == signal.SIGKILL
    child.close()


@pytest.mark.slow
def test_a_model_without_bytes_for_its_tokens_refuses_all_grammars_with_the_reason(tmp_path: Path) -> None:
    child = TrialChild(trial_command(tmp_path, 100))
    try:
        assert "no tokenizer.json" in refused(child.check(GOOD))
    finally:
        child.close()


@pytest.mark.slow
def test_texts_of_any_characters_travel_whole(child: TrialChild) -> None:
    for source in ("\ud800", "\x00\x7f\u2028🦊", "'\"\\"):
        found = child.check(Grammar("choice", [source]))
        assert isinstance(found, str | BadRequest)
        if isinstance(found, str):
            assert json.dumps(source, ensure_ascii=False).replace("\x7f", "\\u007f") in found
    assert child.num_starts == 1
