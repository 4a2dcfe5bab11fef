"""What ranks give arrives, and a rank that goes or does something else is named at once: on a host, and over gloo."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from model.collectives import agree, outside_steps
from model.group_meeting import AnyCollectives
from protocol.errors import GroupBroken
from protocol.messages_group import StepShape
from tests.model.ranks import CPU, LIMIT_S, on_host, over_gloo

InGroup = Callable[[int, Path, Callable[[Any], Any]], list[Any]]


def over_gloo_without_tags(size: int, folder: Path, main: Callable[[Any], Any]) -> list[Any]:
    """As a service has it that is not in debug mode."""
    return over_gloo(size, folder, main, debug=False)


@pytest.fixture(params=[on_host, over_gloo])
def in_group(request: pytest.FixtureRequest) -> InGroup:
    """Runs a function on each rank of a group. Ranks compare their calls."""
    run: InGroup = request.param
    return run


@pytest.mark.parametrize("run", [on_host, over_gloo, over_gloo_without_tags])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_ranks_give_arrives(tmp_path: Path, size: int, run: InGroup) -> None:
    def main(ranks: AnyCollectives) -> None:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for step, padded in ((1, 2), (2, 0), (3, 1)):
                shape = StepShape(step, (padded,) * size)
                parts_RPE = torch.arange(size * padded * 4).view(size, padded, 4).to(dtype) + 100 * ranks.rank
                gathered_RPE = ranks.gather(parts_RPE[ranks.rank], shape)
                taken_RPE = ranks.exchange(parts_RPE, shape)
                assert gathered_RPE.dtype == taken_RPE.dtype == dtype
                for rank in range(size):
                    theirs_RPE = parts_RPE + 100 * (rank - ranks.rank)
                    assert torch.equal(gathered_RPE[rank], theirs_RPE[rank])
                    assert torch.equal(taken_RPE[rank], theirs_RPE[ranks.rank])
        assert ranks.doing == ""

    run(size, tmp_path, main)


def test_it_works_within_inference_mode_and_with_tensors_that_are_not_contiguous(
    tmp_path: Path, in_group: InGroup
) -> None:
    def main(ranks: AnyCollectives) -> list[float]:
        with torch.inference_mode():
            columns_PE = (torch.arange(6.0).view(3, 2) + 10 * ranks.rank)[:, :1]
            found: list[float] = ranks.gather(columns_PE, StepShape(1, (3, 3))).flatten().tolist()
            return found

    assert in_group(2, tmp_path, main) == [[0.0, 2.0, 4.0, 10.0, 12.0, 14.0]] * 2


def test_ranks_agree_only_if_all_do(tmp_path: Path, in_group: InGroup) -> None:
    def main(ranks: AnyCollectives) -> list[bool]:
        return [agree(ranks, is_fine, CPU) for is_fine in (True, False, ranks.rank == 1)]

    assert in_group(3, tmp_path, main) == [[True, False, False]] * 3


@pytest.mark.parametrize(
    "other, said",
    [
        ((18, "gather", 2), r"rank 0 at gather 0 of step 17 \(2, 4\), rank 1 at gather 0 of step 18 \(2, 4\)"),
        ((17, "exchange", 2), r"rank 0 at gather 0 of step 17 \(2, 4\), rank 1 at exchange 0 of step 17 \(2, 4\)"),
        ((17, "gather", 3), r"rank 0 at gather 0 of step 17 \(2, 4\), rank 1 at gather 0 of step 17 \(3, 4\)"),
    ],
)
def test_ranks_that_differ_name_both_calls(
    tmp_path: Path, in_group: InGroup, other: tuple[int, str, int], said: str
) -> None:
    """In another step, in another operation, with another size: all ranks say the same."""

    def main(ranks: AnyCollectives) -> None:
        step, operation, padded = (17, "gather", 2) if ranks.rank == 0 else other
        shape = StepShape(step, (padded, padded))
        call = ranks.gather if operation == "gather" else ranks.exchange
        given = torch.zeros(padded, 4) if operation == "gather" else torch.zeros(2, padded, 4)
        with pytest.raises(GroupBroken, match=f"ranks have lost each other: {said}"):
            call(given, shape)

    in_group(2, tmp_path, main)


def test_a_rank_that_has_skipped_a_call_is_noticed_in_the_next(tmp_path: Path, in_group: InGroup) -> None:
    def main(ranks: AnyCollectives) -> None:
        step, own_1E = StepShape(5, (1, 1)), torch.zeros(1, 4)
        for _ in range(2):
            ranks.exchange(ranks.gather(own_1E, step), step)
        if ranks.rank == 0:
            own_1E = own_1E + 1
        else:
            ranks._calls._num_entered += 2  # as if it had computed another layer
        with pytest.raises(GroupBroken, match=r"rank 0 at gather 2 of step 5 .*, rank 1 at gather 3 of step 5"):
            ranks.gather(own_1E, step)

    in_group(2, tmp_path, main)


def test_a_rank_that_computes_beside_a_replay_compares_no_tags(tmp_path: Path) -> None:
    """A graph has recorded its calls before the first step."""

    def main(ranks: Any) -> None:
        step = StepShape(0 if ranks.rank else 7, (2, 2), True)
        given = torch.full((2, 3), float(ranks.rank))
        every = torch.stack([torch.full((2, 3), float(rank)) for rank in range(2)])
        assert torch.equal(ranks.gather(given, step), every)
        assert torch.equal(ranks.exchange(torch.stack((given, given)), step), every)

    over_gloo(2, tmp_path, main, debug=True)


def test_a_rank_that_leaves_breaks_the_group_of_those_that_wait(tmp_path: Path, in_group: InGroup) -> None:
    """What they wait for is told to another thread meanwhile."""
    waiting: list[str] = []
    is_waiting = threading.Event()

    def main(ranks: AnyCollectives) -> str:
        step = StepShape(9, (1, 1))
        ranks.exchange(ranks.gather(torch.zeros(1, 4), step), step)
        if ranks.rank == 1:
            assert is_waiting.wait(LIMIT_S)
            return ""

        def look() -> None:
            while not ranks.doing:
                pass
            waiting.append(ranks.doing)
            is_waiting.set()

        looking = threading.Thread(target=look)
        looking.start()
        with pytest.raises(GroupBroken) as broken:
            ranks.gather(torch.zeros(1, 4), step)
        looking.join()
        return broken.value.message

    message, _ = in_group(2, tmp_path, main)
    assert message.startswith("rank 0: gather 1 of step 9 has failed: ")
    assert waiting == ["gather 1 of step 9"]


def test_a_group_that_is_closed_computes_nothing_more(tmp_path: Path, in_group: InGroup) -> None:
    def main(alone: AnyCollectives) -> None:
        alone.close()
        alone.close()
        with pytest.raises(GroupBroken, match="rank 0 has left its group"):
            alone.gather(torch.zeros(1, 1), outside_steps(1, 1))

    in_group(1, tmp_path, main)


def test_closing_does_not_wait_for_a_call_that_has_not_returned(tmp_path: Path, in_group: InGroup) -> None:
    is_closed = threading.Event()

    def main(ranks: AnyCollectives) -> None:
        step, own_1E = StepShape(1, (1, 1)), torch.zeros(1, 4)
        if ranks.rank == 1:
            assert is_closed.wait(LIMIT_S)
            return

        def close() -> None:
            while not ranks.doing:
                pass
            ranks.close()
            is_closed.set()

        closing = threading.Thread(target=close)
        closing.start()
        with pytest.raises(GroupBroken):
            ranks.gather(own_1E, step)
        closing.join()

    in_group(2, tmp_path, main)
