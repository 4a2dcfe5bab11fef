import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.generation.grammars import checks as grammar_checks
from gateway.generation.grammars.checks import BAD_S, MAX_BAD, MAX_REMEMBERED, MAX_REMEMBERED_CHARS, GrammarChecks
from gateway.generation.grammars.refused import GrammarRefused
from gateway.words.request import Grammar
from protocol.errors import BadRequest, Overloaded
from protocol.grammar import grammar_name
from tests.byte_grammars import check, checks
from tests.doubles.clock import VirtualClock

NAMES = [f"k{place}" for place in range(1000)]
LARGE = {
    "type": "object",
    "properties": {name: {"type": "string", "pattern": "^[a-z]{2,50}$"} for name in NAMES},
    "required": NAMES,
}


def regex(pattern: str) -> Grammar:
    return Grammar("regex", pattern)


def text(made: GrammarChecks, wanted: Grammar) -> str:
    return asyncio.run(made.text_of(wanted))


def test_others_go_on_while_a_grammar_is_compiled() -> None:
    made, is_held, is_free = checks(), threading.Event(), threading.Event()

    def held(wanted: Grammar) -> str | GrammarRefused:
        is_held.set()
        assert threading.current_thread() is not threading.main_thread()
        assert is_free.wait(60)
        return check(wanted)

    vars(made)["check"] = held

    async def run() -> None:
        known = made.text_of(None)
        slow = asyncio.ensure_future(made.text_of(regex("a+")))
        await asyncio.to_thread(is_held.wait)
        for _ in range(1000):  # turns of the loop, in each of which streams could be served
            await asyncio.sleep(0)
        assert await known == "" and not slow.done()
        is_free.set()
        assert await slow

    asyncio.run(run())


def test_compiling_leaves_the_interpreter_to_others() -> None:
    """It takes some 100 ms. Without the lock of the interpreter, this thread could do next to nothing meanwhile."""
    wanted, num_steps = Grammar("json", LARGE), 0
    with ThreadPoolExecutor(1) as pool:
        compiled = pool.submit(check, wanted)
        while not compiled.done():
            num_steps += 1
    assert isinstance(compiled.result(), str) and num_steps > 10_000


def test_what_was_found_is_remembered_up_to_a_number() -> None:
    made, compiled = checks(), list[str]()

    def counted(wanted: Grammar) -> str | GrammarRefused:
        compiled.append(wanted.source)
        return check(wanted)

    vars(made)["check"] = counted
    for number in (*range(MAX_REMEMBERED), 0, MAX_REMEMBERED, 0, 1):
        text(made, regex(f"a{number}"))
    assert len(compiled) == MAX_REMEMBERED + 2, "the second a1 was compiled again, a0 was not"


def test_long_grammars_are_forgotten_sooner() -> None:
    made = checks()
    vars(made)["check"] = lambda wanted: "x" * (MAX_REMEMBERED_CHARS // 4)
    for number in range(6):
        text(made, regex(f"a{number}"))
    assert len(made._known) == 4 and made._num_chars == MAX_REMEMBERED_CHARS


def test_a_wait_for_the_grammars_of_others_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made = checks()
    monkeypatch.setattr(grammar_checks, "MAX_WAIT_S", 0)

    async def run() -> None:
        async with made._turn(""):
            with pytest.raises(Overloaded, match="new grammars have been tried for 0 s"):
                await made.text_of(regex("a+"))
        monkeypatch.undo()
        assert await made.text_of(regex("a+"))

    asyncio.run(run())


def test_a_grammar_that_has_ended_workers_is_refused_for_a_while() -> None:
    clock = VirtualClock()
    made = GrammarChecks(check, clock)
    grammar = Grammar("ebnf", 'start: "a" | "b"')
    good, other = text(made, grammar), text(made, regex("a+"))
    made.blame(grammar_name(good))
    with pytest.raises(GrammarRefused, match=r"^shape\.source: workers have ended while they followed this grammar"):
        text(made, grammar)
    assert text(made, regex("a+")) == other
    clock.advance(BAD_S)
    assert text(made, grammar) == good


def test_so_many_grammars_are_remembered_as_bad_the_last_ones() -> None:
    clock = VirtualClock()
    made = GrammarChecks(check, clock)
    names = [grammar_name(text(made, regex(f"a{number}"))) for number in range(3)]
    made.blame(names[0])
    made.blame(names[1])
    for number in range(MAX_BAD - 2):
        clock.advance(0.1)
        made.blame(f"another-{number}")
    made.blame(names[0])  # once more, so now it is the last one
    assert len(made._bad) == MAX_BAD
    made.blame(names[2])
    assert len(made._bad) == MAX_BAD and names[1] not in made._bad
    for number, is_bad in enumerate((True, False, True)):
        if is_bad:
            with pytest.raises(BadRequest, match="workers have ended"):
                text(made, regex(f"a{number}"))
        else:
            text(made, regex(f"a{number}"))


async def in_line(made: GrammarChecks, num: int) -> None:
    """Returns when so many requests wait for their turns: each makes a digest in a thread first."""
    async with asyncio.timeout(60):
        while sum(map(len, made._turns._lines.values())) != num:  # noqa: ASYNC110  # it has no event
            await asyncio.sleep(0.001)


class HeldTries:
    """Checks of grammars, whose trials wait until `is_free` is set."""

    def __init__(self) -> None:
        self.made, self.tried = checks(), list[str]()
        self.is_tried, self.is_free = threading.Event(), threading.Event()
        vars(self.made)["check"] = self._held

    def _held(self, wanted: Grammar) -> str:
        self.tried.append(wanted.source)
        self.is_tried.set()
        assert self.is_free.wait(60)
        return "text"


def test_a_trial_that_has_begun_ends_without_its_client_and_keeps_its_turn() -> None:
    """A client that waits for less than a trial takes gets its answer later."""
    tries = HeldTries()
    made, tried, is_tried, is_free = tries.made, tries.tried, tries.is_tried, tries.is_free

    async def run() -> None:
        left = asyncio.create_task(made.text_of(regex("a")))
        await asyncio.to_thread(is_tried.wait)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        is_kept = made._turns._is_taken
        if not is_kept:
            is_free.set()
        assert is_kept
        again = asyncio.create_task(made.text_of(regex("a")))
        other = asyncio.create_task(made.text_of(regex("b")))
        await in_line(made, 2)
        assert tried == ["a"]
        is_free.set()
        assert await asyncio.gather(again, other) == ["text", "text"]

    asyncio.run(run())
    assert tried == ["a", "b"]


def test_the_thread_of_trials_prepares_itself_when_it_is_told_to() -> None:
    threads, made = list[str](), checks()
    made.prepare = lambda: threads.append(threading.current_thread().name)
    made.warm_up()
    made.close(lambda: None)  # waits for the thread
    assert len(threads) == 1 and threads[0].startswith("grammar trials")
