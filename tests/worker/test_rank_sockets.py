"""How the ranks of a group find one another, on real sockets."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zmq

from protocol.errors import BatonError, ConfigError, GroupBroken, Unavailable
from protocol.messages_group import TO_RANK, GroupPlace, RankBeat, RankHello, StepRow, ToRank
from runtime.clock import MonotonicClock
from runtime.installation import baton_version
from tests.doubles.clock import VirtualClock
from tests.worker.stopping import Stop
from worker.group_watch import JOIN_S
from worker.rank_sockets import RankSockets


class Impatient(VirtualClock):
    """Each look finds that much time has passed."""

    def now(self) -> float:
        self.advance(JOIN_S / 3)
        return super().now()


class Group:
    """Sockets of ranks that a test opens one by one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stop: Any = Stop()
        self.opened: list[RankSockets] = []

    def open(self, rank: int, size: int = 3, epoch: int = 4, group: str = "d") -> RankSockets:
        self.opened.append(RankSockets(GroupPlace(group, epoch, rank, size), str(self.folder)))
        return self.opened[-1]

    def meet(self, models: list[str]) -> list[bool | BatonError]:
        """All that are open meet at the same time: what each returns or raises."""

        def one(sockets: RankSockets, model: str) -> bool | BatonError:
            try:
                return sockets.meet(model, self.stop, MonotonicClock())
            except BatonError as error:
                return error

        with ThreadPoolExecutor(len(models)) as pool:
            return list(pool.map(one, self.opened, models))

    def close(self) -> None:
        for sockets in self.opened:
            sockets.close()
        self.stop.close()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    yield made
    made.close()


def arrived(sockets: RankSockets, last: ToRank) -> list[ToRank]:
    """All messages up to this one, waiting for them."""
    messages: list[ToRank] = []
    while last not in messages:
        assert sockets.inbox.poll(60_000)
        messages += sockets.receive()
    return messages


def test_ranks_meet_when_they_have_started_and_when_they_have_loaded_in_any_order(group: Group) -> None:
    for rank in (2, 0, 1):
        group.open(rank)
    assert group.meet(["", "", ""]) == [True, True, True]
    assert group.meet(["aa", "aa", "aa"]) == [True, True, True]


def test_ranks_of_other_models_name_both(group: Group) -> None:
    for rank in range(2):
        group.open(rank, size=2)
    group.meet(["", ""])
    errors = group.meet(["aa", "bb"])
    assert all(isinstance(error, ConfigError) for error in errors)
    assert str(errors[0]) == "rank 1 of group 'd': its model is 'bb', that of rank 0 is 'aa'"
    assert str(errors[1]) == "rank 0 of group 'd': its model is 'aa', that of rank 1 is 'bb'"


@pytest.mark.parametrize(
    "stranger, version, named",
    [
        (GroupPlace("e", 4, 1, 2), baton_version(), "its group is 'e', that of rank 0 is 'd'"),
        (GroupPlace("d", 4, 1, 3), baton_version(), "its size of the group is 3, that of rank 0 is 2"),
        (GroupPlace("d", 4, 1, 2), "0.0.1", "its version of Baton is '0.0.1', that of rank 0 is"),
    ],
)
def test_a_rank_of_another_group_size_or_version_is_named(
    stranger: GroupPlace, version: str, named: str, group: Group
) -> None:
    mine, other = group.open(0, size=2), group.open(1, size=2)
    other.send(RankHello(stranger, version, ""))
    with pytest.raises(ConfigError, match=f"^rank 1 of group 'd': {named}"):
        mine.meet("", group.stop, MonotonicClock())


def test_a_rank_that_never_starts_or_never_loads_is_named(group: Group) -> None:
    for rank in range(2):
        group.open(rank, size=2)
    group.meet(["", ""])
    with pytest.raises(Unavailable, match=r"^rank 1 of group 'd' has not loaded its model in 300 s$"):
        group.opened[0].meet("aa", group.stop, Impatient())
    group.opened[0].close()
    (alone := group.open(0, size=4)).send(RankHello(alone.place, "", ""))
    with pytest.raises(Unavailable, match=r"^rank 1 of group 'd' has not started in 300 s$"):
        alone.meet("", group.stop, Impatient())


def test_who_was_paused_past_the_deadline_reads_first(group: Group) -> None:
    """The hello has come meanwhile."""

    class Paused(VirtualClock):
        def now(self) -> float:
            assert mine.inbox.poll(60_000)
            self.advance(2 * JOIN_S)
            return super().now()

    mine, other = group.open(0, size=2), group.open(1, size=2)
    other.send(RankHello(other.place, baton_version(), ""))
    assert mine.meet("", group.stop, Paused())


def test_a_stop_signal_ends_the_wait(group: Group) -> None:
    alone = group.open(0)
    with ThreadPoolExecutor(1) as pool:
        met = pool.submit(alone.meet, "", group.stop, MonotonicClock())
        group.stop.set()
        assert not met.result()


def test_what_ranks_say_that_serve_already_is_kept_for_later(group: Group) -> None:
    late, early = group.open(0, size=2), group.open(1, size=2)
    said: list[ToRank] = [RankBeat(4, 1, 0), StepRow(4, 1, 1, 5)]
    for message in (RankHello(early.place, baton_version(), ""), said[0], said[1]):
        early.send(message)
    early.send(RankHello(early.place, baton_version(), "aa"))
    assert late.meet("", group.stop, MonotonicClock()) and late.meet("aa", group.stop, MonotonicClock())
    early.send(RankBeat(4, 1, 1))
    assert arrived(late, RankBeat(4, 1, 1)) == [*said, RankBeat(4, 1, 1)]


@pytest.mark.parametrize(
    "raw, named",
    [
        (b"nonsense", "a rank has sent what cannot be read: rank to rank: "),
        (TO_RANK.encode(StepRow(3, 1, 1, 5)), "rank 1 of epoch 3 has sent StepRow to rank 0 of 3 of epoch 4"),
        (TO_RANK.encode(RankBeat(4, 3, 1)), "rank 3 of epoch 4 has sent RankBeat to rank 0 of 3"),
        (TO_RANK.encode(RankBeat(4, 0, 1)), "rank 0 of epoch 4 has sent RankBeat to rank 0 of 3"),
        (
            TO_RANK.encode(RankHello(GroupPlace("d", 3, 1, 3), "", "")),
            "rank 1 of epoch 3 has sent RankHello to rank 0 of 3 of epoch 4",
        ),
    ],
    ids=["nonsense", "epoch", "rank", "own rank", "hello"],
)
def test_what_cannot_be_read_or_was_not_sent_to_this_group_breaks_it(raw: bytes, named: str, group: Group) -> None:
    mine, other = group.open(0), group.open(1)
    other._outboxes[0].send(raw)
    assert mine.inbox.poll(60_000)
    with pytest.raises(GroupBroken, match=f"^{named}"):
        mine.receive()


def test_a_rank_that_reads_nothing_breaks_the_group(tmp_path: Path) -> None:
    alone = RankSockets(GroupPlace("d", 1, 0, 2), str(tmp_path))  # nobody is there

    def flood() -> None:
        for step in range(1, 100_000):
            alone.send(StepRow(1, step, 0, 1))

    with pytest.raises(GroupBroken, match=r"^rank 1 reads nothing of what is sent to it$"):
        flood()
    alone.close()
    alone.close()
    assert alone.inbox.closed


def test_a_folder_in_which_others_may_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    for unfit in (folder, tmp_path / "missing", Path(__file__)):
        with pytest.raises(
            ConfigError, match=r"^group_folder: got .*, expected a folder that is open to this user only"
        ):
            RankSockets(GroupPlace("d", 1, 0, 2), str(unfit))


def test_a_folder_whose_sockets_would_have_too_long_paths_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / ("f" * zmq.IPC_PATH_MAX_LEN)
    folder.mkdir(mode=0o700)
    with pytest.raises(ConfigError, match=r"^group_folder: got .*, expected where sockets can be made"):
        RankSockets(GroupPlace("d", 1, 0, 2), str(folder))
