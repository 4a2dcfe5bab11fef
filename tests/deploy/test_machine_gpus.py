from collections import Counter
from itertools import product

import pytest

from deploy.machine import describe_gpus, read_gpus, read_worker_gpus, share_gpus
from protocol.errors import ConfigError


def roles(text: str) -> list[str]:
    """`2P1D` in the order in which a plan has them."""
    names = {"P": "prefill", "D": "decode", "U": "unified"}
    return [names[letter] for number, letter in zip(text[::2], text[1::2], strict=True) for _ in range(int(number))]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_workers_and_roles_are_spread_evenly(count: int) -> None:
    for prefill, decode, unified in product(range(6), repeat=3):
        wanted = roles(f"{prefill}P{decode}D{unified}U")
        shares = share_gpus(range(count), wanted)
        together = Counter(shares)
        for counted in (wanted, *([role] for role in set(wanted))):
            spread = [sum(gpu == here and role in counted for gpu, role in zip(shares, wanted, strict=True))
                      for here in range(count)]  # fmt: skip
            assert max(spread) - min(spread) <= 1, (count, wanted, shares)
        if len(wanted) <= count:
            assert max(together.values(), default=1) == 1


@pytest.mark.parametrize("count", range(2, 9))
def test_a_pair_is_not_on_one_gpu_where_there_are_two(count: int) -> None:
    for pairs in range(1, 9):
        shares = share_gpus(range(count), roles(f"{pairs}P{pairs}D"))
        assert [pair for pair in range(pairs) if shares[pair] == shares[pairs + pair]] == []


def test_the_numbers_are_those_of_the_list() -> None:
    assert share_gpus((6, 2), roles("1P1D")) == [6, 2]
    assert share_gpus((), roles("1P1D")) == [None, None]


@pytest.mark.parametrize(
    "asked, device, count, gpus",
    [
        ("all", "auto", 0, ()),
        ("all", "auto", 1, (0,)),
        ("all", "auto", 3, (0, 1, 2)),
        ("all", "cuda", 2, (0, 1)),
        ("all", "cpu", 2, ()),
        ("all", "cuda:1", 2, (1,)),
        ("1", "cuda:1", 2, (1,)),
        ("2,0", "auto", 3, (2, 0)),
        ("0-2", "cuda", 8, (0, 1, 2)),
    ],
)
def test_what_is_asked(asked: str, device: str, count: int, gpus: tuple[int, ...]) -> None:
    assert read_gpus(asked, device, count) == gpus


@pytest.mark.parametrize(
    "asked, device, count, says",
    [
        ("9", "auto", 2, "--gpus: got '9', but there is no GPU 9 for this process; there are 0-1"),
        ("0,1,0", "auto", 2, "--gpus: got '0,1,0', which names GPU 0 twice"),
        ("one", "auto", 2, "--gpus: got 'one', expected all, or GPUs such as 0,1 or 0-3"),
        ("", "auto", 2, "--gpus: got '', expected all, or GPUs such as 0,1 or 0-3"),
        ("GPU-5fd4f5a6", "auto", 2, "--gpus: got 'GPU-5fd4f5a6', expected all"),
        ("-1", "auto", 2, "--gpus: got '-1', expected all"),
        ("0", "auto", 0, "--gpus: got '0', but there is no GPU 0 for this process; there is no GPU at all"),
        ("0", "cpu", 2, "--gpus: got '0', but --device is cpu"),
        ("0,1", "cuda:1", 2, "--gpus: got '0,1', but --device is cuda:1"),
        ("all", "cuda:2", 2, "--device: got 'cuda:2', but there are 0-1"),
        ("all", "cuda:0", 0, "--device: got 'cuda:0', but torch finds no GPU here"),
        ("all", "cuda", 0, "--device: got 'cuda', but torch finds no GPU here"),
    ],
)
def test_what_cannot_be_asked(asked: str, device: str, count: int, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_gpus(asked, device, count)
    assert caught.value.message.startswith(says)


def test_one_worker_takes_one_gpu() -> None:
    assert read_worker_gpus(None, "auto", 3, 1) == read_worker_gpus("all", "auto", 3, 1) == (0,)
    assert read_worker_gpus("2", "auto", 3, 1) == read_worker_gpus(None, "cuda:2", 3, 1) == (2,)
    assert read_worker_gpus(None, "auto", 0, 1) == ()
    assert read_worker_gpus(None, "cpu", 3, 1) == ()
    with pytest.raises(ConfigError, match="--gpus: got '0,1', expected one GPU for one worker"):
        read_worker_gpus("0,1", "auto", 3, 1)


def test_each_rank_takes_a_gpu_if_there_are_enough() -> None:
    assert read_worker_gpus(None, "auto", 8, 3) == (0, 1, 2)
    assert read_worker_gpus("5,1", "auto", 8, 3) == (5, 1)
    assert read_worker_gpus(None, "cuda:2", 8, 3) == (2,)
    with pytest.raises(ConfigError, match="--gpus: got '0-3', expected at most 3 GPUs for 3 ranks"):
        read_worker_gpus("0-3", "auto", 8, 3)


def test_the_log_says_who_shares() -> None:
    assert describe_gpus({"prefill-0": None}) == []
    assert describe_gpus({"prefill-0": 1, "decode-0": 0, "decode-1": 1}) == [
        "GPU 0: decode-0",
        "GPU 1: prefill-0 and decode-1, which divide its memory into 2 parts",
    ]
