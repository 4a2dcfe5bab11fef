"""A rank without work is killed or paused while every group streams: one group is lost, the other notices nothing."""

import contextlib
import json
import re
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.doubles.hash_model import FakeRunner
from tests.e2e.baton_process import FAKE, PATIENCE_S, BatonProcess
from tests.processes import has_ended

pytestmark = [pytest.mark.slow, pytest.mark.broad]
RUNNER = FakeRunner()
SIZE, GROUPS = 3, ("unified-0", "unified-1")
FLAGS = f"--port 0 --prefill 0 --decode 0 --unified 2 --dp-size {SIZE} --enable-dp-attention --pairing round_robin"
CONTEXT = 20_000  # tokens: no stream ends before a group has come back
ENDLESS: dict[str, Any] = {"max_tokens": 19_000, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


class Reader:
    """Reads a stream in a thread, until it leaves."""

    def __init__(self, baton: BatonProcess, prompt: list[int]) -> None:
        self.prompt, self.tokens, self.request_id = prompt, list[int](), ""
        self._leaves = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(baton,))
        self._thread.start()

    def goes_on(self, baton: BatonProcess) -> bool:
        """Whether more tokens come from now on."""
        before = len(self.tokens)
        return baton.wait_until(lambda: len(self.tokens) > before or not self._thread.is_alive()) and self.is_open

    @property
    def is_open(self) -> bool:
        """Whether the stream has not ended."""
        return self._thread.is_alive()

    def leave(self) -> None:
        """Closes the connection at the next token."""
        self._leaves.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self, baton: BatonProcess) -> None:
        with contextlib.closing(baton.stream(prompt=self.prompt, **ENDLESS)) as stream:
            for chunk in stream:
                self.request_id = chunk.get("id", self.request_id)
                self.tokens += chunk["choices"][0]["token_ids"] if chunk.get("choices") else []
                if self._leaves.is_set():
                    return


@contextlib.contextmanager
def readers(baton: BatonProcess, count: int) -> Iterator[dict[str, Reader]]:
    """So many streams, by the rank that decodes each. All leave at the end."""
    found: dict[str, Reader] = {}
    with contextlib.ExitStack() as stack:
        for number in range(count):
            reader = Reader(baton, [5, 6, 7 + number])
            stack.callback(reader.leave)
            assert reader.goes_on(baton)
            assert baton.wait_until(lambda: len(busy_ranks(baton)) > len(found))
            (rank,) = busy_ranks(baton) - set(found)
            found[rank] = reader
        yield found


def busy_ranks(baton: BatonProcess) -> set[str]:
    """The ids of the ranks that decode."""
    return {row["id"] for row in baton.workers() if row["running"]}


def members(baton: BatonProcess, group: str) -> set[tuple[int, int]]:
    """(epoch, process) of each rank of the group that serves."""
    return {(row["place"]["epoch"], row["pid"]) for row in baton.workers() if row["place"]["group"] == group}


def idle_rank(baton: BatonProcess, busy: set[str]) -> tuple[str, int]:
    """(group, rank) of a rank that decodes nothing, beside one of its group that does."""
    everyone = {row["id"] for row in baton.workers()}
    group, _, rank = min(everyone - busy).rpartition(".")
    assert any(each.startswith(f"{group}.") for each in busy)
    return group, int(rank)


def says(baton: BatonProcess, speaker: str) -> list[str]:
    """What one process has logged, in its order. The launcher hears several processes, so theirs may mingle."""
    return re.findall(rf"^\S+Z \w+ {re.escape(speaker)} (.*)$", baton.log_text(), re.MULTILINE)


def folders(meeting: str) -> set[str]:
    """The folders in which ranks meet."""
    return {folder.name for folder in Path(meeting).glob("baton-ranks-*/*")}


def check_gateway(baton: BatonProcess, group: str, moved: set[str]) -> None:
    """It loses the ranks of the group and no others, retries the group's streams once, then admits a new epoch."""
    news = [line for line in says(baton, "gateway") if re.match("worker (left|lost|joined)|request retried", line)]
    news = news[SIZE * len(GROUPS) :]  # all have joined before
    lost = [line for line in news if re.match("worker (left|lost)", line)]
    retried = [line for line in news if line.startswith("request retried")]
    joined = [line for line in news if line.startswith("worker joined")]

    assert len(lost) == len(joined) == SIZE, news
    assert all(f"worker={group}." in line for line in lost + joined), news
    assert {re.sub(r".*request_id=(\S+)-0 .*", r"\1", line) for line in retried} == moved, news
    assert len(retried) == len(moved) and all(f"before={group}." in line for line in retried), news
    assert news[0] in lost and set(news[-SIZE:]) == set(joined), news


def check_launcher(baton: BatonProcess, group: str, rank: int, number: signal.Signals) -> None:
    """It names the rank that was lost and what becomes of its group, then says that the group serves again."""
    ended, again = [line for line in says(baton, "baton") if group in line]
    lost = (
        f"{group}.{rank} was killed"
        if number == signal.SIGKILL
        else f"{group}.[0-9] ended .*: rank {rank} has been silent"
    )
    assert re.match(lost, ended) and ended.endswith(f"group {group} of {SIZE} ranks is started again at once"), ended
    assert (f"; {group}.{rank} was paused, so this does not count; " in ended) == (number == signal.SIGSTOP), ended
    assert again.startswith(f"{group} serves again after ") and again.endswith("restart 1"), again


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_streams_of_a_second_group_are_untouched_while_the_first_is_lost_and_comes_back(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": CONTEXT, "vocab_size": 997}))
    argv = (str(tmp_path), *FLAGS.split(), "--context-length", str(CONTEXT), "--max-total-tokens", str(4 * CONTEXT))
    with tempfile.TemporaryDirectory(prefix="b-") as meeting:
        variables = {"TMPDIR": meeting}
        with BatonProcess(*argv, log=tmp_path / "log", program=FAKE, variables=variables) as baton:
            with readers(baton, 4) as by_rank:
                group, rank = idle_rank(baton, set(by_rank))
                (other,) = set(GROUPS) - {group}
                moved = [reader for id_, reader in by_rank.items() if id_.startswith(group)]
                stayed = [reader for id_, reader in by_rank.items() if id_.startswith(other)]
                assert moved and stayed
                before, untouched, at_first = members(baton, group), members(baton, other), folders(meeting)
                lost = [psutil.Process(pid) for _, pid in before]
                baton.worker(f"{group}.{rank}").send_signal(number)

                assert baton.wait_until(lambda: not before & members(baton, group))
                assert all(reader.goes_on(baton) for reader in stayed)
                assert baton.wait_until(lambda: len(members(baton, group)) == SIZE)
                assert all(reader.goes_on(baton) for reader in moved + stayed)
                after = members(baton, group)

            for reader in by_rank.values():
                assert reader.tokens == RUNNER.expected_tokens(reader.prompt, len(reader.tokens))
            assert members(baton, other) == untouched
            assert {epoch for epoch, _ in after} == {max(epoch for epoch, _ in before) + 1}
            assert all(map(has_ended, lost)) and not {pid for _, pid in before} & {pid for _, pid in after}
            check_gateway(baton, group, {reader.request_id for reader in moved})
            check_launcher(baton, group, rank, number)

            for last in range(SIZE * len(GROUPS)):  # each rank serves, by turns
                assert baton.tokens([9, last], max_tokens=5, temperature=0) == RUNNER.expected_tokens([9, last], 5)
            assert baton.wait_for_rest()
            assert len(folders(meeting)) == len(GROUPS) and len(folders(meeting) - at_first) == 1
        assert not list(Path(meeting).glob("baton-ranks-*"))
