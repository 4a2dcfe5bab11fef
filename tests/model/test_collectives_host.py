"""Shared memory between ranks: values of any size pass in rounds, and a rank that does not come is named."""

import socket
import struct
import threading
from pathlib import Path

import pytest
import torch

from model.collectives import Tag
from model.collectives_host import _RANK, REGION_BYTES, HostCollectives, _path, open_host
from protocol.errors import GroupBroken
from protocol.messages_group import GroupPlace, StepShape
from tests.model.ranks import LIMIT_S, on_host


@pytest.mark.parametrize("more_bytes", [-4, 0, 4, REGION_BYTES])
def test_what_does_not_fit_passes_in_rounds(tmp_path: Path, more_bytes: int) -> None:
    """Around the limits of one round of a gather and of an exchange, and again with small values behind it."""
    hidden = (REGION_BYTES + more_bytes) // 4

    def main(ranks: HostCollectives) -> None:
        for step, size in ((1, hidden), (2, 3), (3, hidden // 3)):
            parts_31E = torch.arange(3 * size, dtype=torch.int32).view(3, 1, size) * 3 + ranks.rank
            gathered_31E = ranks.gather(parts_31E[ranks.rank], StepShape(step, (1, 1, 1)))
            taken_31E = ranks.exchange(parts_31E, StepShape(step, (1, 1, 1)))
            for rank in range(3):
                theirs_31E = parts_31E - ranks.rank + rank
                assert torch.equal(gathered_31E[rank], theirs_31E[rank])
                assert torch.equal(taken_31E[rank], theirs_31E[ranks.rank])

    on_host(3, tmp_path, main)


def test_a_rank_that_is_ahead_overwrites_nothing_that_another_one_still_takes(tmp_path: Path) -> None:
    """Rank 1 has heard that all values are there, and takes them after rank 0 has put its next ones."""
    is_ahead = threading.Event()

    def main(ranks: HostCollectives) -> list[list[float]]:
        meet, num_met = ranks._meet, 0

        def met(tag: Tag) -> None:
            nonlocal num_met
            num_met += 1
            if ranks.rank == 0 and num_met == 2:
                is_ahead.set()
            meet(tag)
            if ranks.rank == 1 and num_met == 1:
                assert is_ahead.wait(LIMIT_S)

        vars(ranks)["_meet"] = met
        given = [torch.full((1, 1), float(10 * number + ranks.rank)) for number in range(3)]
        taken = [ranks.gather(own_11, StepShape(1, (1, 1))) for own_11 in given]
        return [each.flatten().tolist() for each in taken]

    assert on_host(2, tmp_path, main) == [[[0.0, 1.0], [10.0, 11.0], [20.0, 21.0]]] * 2


def test_a_rank_that_does_not_come_in_time_is_named(tmp_path: Path) -> None:
    """The limit is that of the socket, which the kernel keeps."""
    has_failed = threading.Event()

    def main(ranks: HostCollectives) -> str:
        if ranks.rank == 1:
            assert has_failed.wait(LIMIT_S)
            return ""
        seconds_and_us = struct.pack("ll", 0, 1000)
        ranks._others[1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds_and_us)
        with pytest.raises(GroupBroken) as broken:
            ranks.gather(torch.zeros(1, 1), StepShape(4, (1, 1)))
        has_failed.set()
        return broken.value.message

    assert on_host(2, tmp_path, main) == ["rank 0: gather 0 of step 4 has failed: rank 1 does not come", ""]


def test_closing_again_or_after_the_others_does_nothing(tmp_path: Path) -> None:
    def main(ranks: HostCollectives) -> str:
        ranks.close()
        ranks.close()
        return ranks.doing

    assert on_host(3, tmp_path, main) == ["", "", ""]


def test_nothing_is_left_in_the_folder_when_ranks_have_met(tmp_path: Path) -> None:
    def main(ranks: HostCollectives) -> None:
        ranks.gather(torch.zeros(1, 1), StepShape(1, (1, 1)))

    on_host(2, tmp_path, main)
    assert not list(tmp_path.glob("values-*"))


def test_a_rank_that_cannot_meet_leaves_nothing(tmp_path: Path) -> None:
    def refuse() -> None:
        raise OSError("nobody is here")

    with pytest.raises(OSError, match="nobody is here"):
        open_host(GroupPlace("g", 1, 0, 2), str(tmp_path), refuse, 1.0)
    assert not list(tmp_path.iterdir())


def test_a_rank_that_goes_before_it_has_said_its_number_is_told(tmp_path: Path) -> None:
    def meet() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            other.connect(_path(str(tmp_path), 0))

    with pytest.raises(ConnectionError, match="a rank has gone while the group connected"):
        open_host(GroupPlace("g", 1, 0, 2), str(tmp_path), meet, LIMIT_S)


def test_rank_0_that_goes_before_it_has_handed_out_the_memory_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(_path(str(tmp_path), 0))
        listener.listen(1)

        def rank_0() -> None:
            other, _ = listener.accept()
            assert other.recv(_RANK.size)
            other.close()

        thread = threading.Thread(target=rank_0)
        thread.start()
        with pytest.raises(ConnectionError, match="rank 0 has gone while the group connected"):
            open_host(GroupPlace("g", 1, 1, 2), str(tmp_path), lambda: None, LIMIT_S)
        thread.join()
