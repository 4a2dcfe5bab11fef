"""What draws must do on any device: the same as torch's operations on the same logits, hostile ones included."""

import random
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from model.sampler import TorchDraws, mask_logits, sample_scored, uniform
from model.sampling_input import NOT_A_TOKEN, NOTHING_LEFT, AllowedTokens, Draws, SamplingInput
from tests.model.driving import Row, random_logits, sampling

NAN, INF = float("nan"), float("inf")
CLOSE: Final = 1e-6  # of a row's probability: what sums that are rounded differently may shift
TEMPERATURES: Final = (0.0, 1e-31, 1e-4, 0.3, 1.0, 1.0, 2.5, 1e4, 1e30)
TOP_KS: Final = (0, 0, 1, 2, 3, 20, 31, 33, 200, 10**6)
TOP_PS: Final = (1e-9, 0.05, 0.4871, 0.9, 0.9731, 0.99999, 1.0, 1.0)
MIN_PS: Final = (0.0, 0.0, 1e-6, 0.05, 0.4, 1.0)
SHAPES: Final = ("normal", "ties", "equal", "spread", "holes", "one", "peak", "flat")
VOCABS: Final = (1, 2, 31, 64, 65, 200)  # below, at and above a tile of the interpreted kernels


def logits_of(shape: str, vocab_size: int, seed: int) -> Tensor:
    """One row (1, V) of finite numbers and -inf, with at least one finite."""
    row_1V = random_logits(1, vocab_size, seed)
    if shape == "ties":
        row_1V = (row_1V / 2).round() * 2
    elif shape == "equal":
        row_1V = torch.full_like(row_1V, -0.0 if seed % 2 else 3.7)
    elif shape == "spread":
        row_1V *= 40
    elif shape == "holes":
        row_1V[:, 1::2] = -INF
    elif shape == "one":
        row_1V = torch.full_like(row_1V, -INF).index_fill_(1, torch.tensor([seed % vocab_size]), -1e30)
    elif shape == "peak":
        row_1V[:, seed % vocab_size] = 80.0
    elif shape == "flat":
        row_1V *= 1e-4
    return row_1V


def any_row(chance: random.Random) -> Row:
    """Parameters of a row: any mix."""
    return {
        "temperature": chance.choice(TEMPERATURES),
        "top_k": chance.choice(TOP_KS),
        "top_p": chance.choice(TOP_PS),
        "min_p": chance.choice(MIN_PS),
        "seed": chance.randrange(-(2**63), 2**63),
        "choice": chance.randrange(4),
        "position": chance.randrange(1 << 20),
    }


def moved(s: SamplingInput, device: torch.device) -> SamplingInput:
    """The same on another device."""
    rows: dict[str, Any] = {
        name: rows_N.to(device) for name, rows_N in s.asking._asdict().items() if isinstance(rows_N, Tensor)
    }
    params = type(s.params)(*(column_L.to(device) for column_L in s.params))
    allowed = None if s.allowed is None else AllowedTokens(*(each.to(device) for each in s.allowed))
    return replace(
        s, params=params, asking=s.asking._replace(**rows), position_L=s.position_L.to(device), allowed=allowed
    )


def check_draw(draws: Draws, device: torch.device, logits_LV: Tensor, rows: list[Row], *, exact: bool) -> None:
    """Tokens and what they were drawn from, beside torch's on the CPU; each row alone, too.

    `exact`: exp() is the same, so the masks are, too. Else a mask may differ in what is next to nothing.
    """
    s = sampling(*rows)
    found = draws.draw(logits_LV.to(device), moved(s, device))
    tokens: list[int] = found.tokens_L.tolist()
    wanted = TorchDraws().draw(logits_LV, s)
    every_L = torch.arange(len(rows))
    from_LV, wanted_LV = found.logits_of(every_L.to(device)).cpu(), wanted.logits_of(every_L)

    differs_LV = (from_LV == -INF) != (wanted_LV == -INF)
    shares_LV = (torch.maximum(from_LV, wanted_LV) - wanted_LV.amax(1, keepdim=True)).exp().nan_to_num()
    assert not differs_LV.any() if exact else (shares_LV * differs_LV).sum(1).max() <= 1e-4
    same_LV = differs_LV | (from_LV == wanted_LV)
    assert same_LV.all(), "a kept token has the logit that it is drawn by"

    noise = uniform(s.params.seed_L, s.params.choice_L, s.position_L).tolist()
    for row, (token, right) in enumerate(zip(tokens, wanted.tokens_L.tolist(), strict=True)):
        if token != right:
            up_to_V = wanted_LV[row].double().softmax(0).cumsum(0)
            before = float(up_to_V[token - 1]) if token else 0.0
            assert rows[row]["temperature"] > 0 and before - CLOSE <= noise[row] <= up_to_V[token] + CLOSE, rows[row]
            assert from_LV[row, token] > -INF, "a masked token was drawn"
        alone = sampling(rows[row])
        own = draws.draw(logits_LV[row : row + 1].to(device), moved(alone, device))
        assert own.tokens_L.tolist() == [token], "a row depends on its batch"


def check_mixes(draws: Draws, device: torch.device, vocab_size: int, count: int, *, exact: bool) -> None:
    """`count` rows of any parameters on logits of every shape."""
    chance = random.Random(vocab_size)
    rows = [any_row(chance) for _ in range(count)]
    if not exact:  # of nearly equal logits, the last bit of exp() decides which are as likely as the largest
        rows = [{**row, "min_p": min(row["min_p"], 0.9)} for row in rows]
    logits_LV = torch.cat([logits_of(SHAPES[i % len(SHAPES)], vocab_size, i) for i in range(count)])
    check_draw(draws, device, logits_LV, rows, exact=exact)


def check_bad_rows(draws: Draws, device: torch.device) -> None:
    """NaN and infinities spoil their row and no other; -inf beside a number is a score."""
    vocab_size = 40
    masks: tuple[Row, ...] = ({}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"temperature": 0.0})
    for mask in masks:
        logits_LV = random_logits(7, vocab_size, 5)
        wanted = draws.draw(logits_LV.to(device), moved(sampling(*[mask] * 7), device)).tokens_L.tolist()
        for row, (at, value) in enumerate([(0, NAN), (17, -NAN), (39, INF)], start=1):
            logits_LV[row, at], wanted[row] = value, NOT_A_TOKEN
        logits_LV[5], wanted[5] = -INF, NOT_A_TOKEN
        logits_LV[6], logits_LV[6, 7], wanted[6] = -INF, -1e30, 7
        found = draws.draw(logits_LV.to(device), moved(sampling(*[mask] * 7), device))
        assert found.tokens_L.tolist() == wanted


def check_grammars(draws: Draws, device: torch.device, vocab_size: int) -> None:
    """Rows with grammars in any order, rows without, and one that may draw nothing."""
    num_rows, generator = 9, torch.Generator().manual_seed(vocab_size)
    logits_LV = random_logits(num_rows, vocab_size, 1)
    words_NW = torch.randint(-(2**31), 2**31, (4, vocab_size // 32 + 2), generator=generator).int()
    words_NW[2], words_NW[0, 0] = 0, -(2**31) + 1
    s = sampling(*[{"seed": row, "temperature": row % 3 / 2} for row in range(num_rows)])
    s = replace(s, allowed=AllowedTokens(torch.tensor([7, 0, 5, 2]), words_NW))
    assert s.allowed is not None

    on_device = moved(s, device)
    assert on_device.allowed is not None
    given_LV = logits_LV.to(device)
    masked_LV = draws.only_allowed(given_LV, on_device.allowed)
    assert torch.equal(masked_LV.cpu(), TorchDraws().only_allowed(logits_LV, s.allowed))
    assert torch.equal(given_LV.cpu(), logits_LV), "the logits are not changed"
    tokens = sample_scored(given_LV, on_device, draws=draws).tokens_L.tolist()
    assert tokens[5] == NOTHING_LEFT
    assert tokens == sample_scored(logits_LV, s, draws=TorchDraws()).tokens_L.tolist()


def check_frequencies(draws: Draws, device: torch.device, count: int) -> None:
    """Tokens are drawn as often as the masks and softmax say."""
    logits_1V = random_logits(1, 12, 3) / 2
    masks: tuple[Row, ...] = ({}, {"top_k": 4, "temperature": 0.7}, {"top_p": 0.6}, {"min_p": 0.2, "temperature": 2.0})
    for mask in masks:
        s = moved(sampling(*[{**mask, "position": position, "seed": 11} for position in range(count)]), device)
        tokens_L = draws.draw(logits_1V.expand(count, -1).to(device), s).tokens_L.cpu()
        found = torch.bincount(tokens_L, minlength=12) / count
        expected = mask_logits(logits_1V / mask.get("temperature", 1.0), sampling(mask)).softmax(-1)[0]
        assert float((found - expected).abs().max()) < 2.2 / count**0.5
        assert bool((found[expected == 0] == 0).all())
