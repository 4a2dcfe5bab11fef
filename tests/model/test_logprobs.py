import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.logprobs import LogprobRows, likeliest, score
from model.sampler import sample_scored
from protocol.logprobs import Logprobs
from tests.model.driving import sampling


def read(words: torch.Tensor, num_top: int) -> Logprobs:
    return Logprobs(num_top, struct.pack(f"<{words.numel()}i", *words.flatten().tolist()))


def test_scores_are_those_of_log_softmax() -> None:
    torch.manual_seed(0)
    logits, tokens = torch.randn(5, 40) * 8, torch.tensor([3, 0, 39, 7, 7])
    right = logits.double().log_softmax(-1)
    for row, found in enumerate(read(score(logits, tokens, 4), 4).tokens()):
        chosen = float(right[row, tokens[row]])
        assert found.logprob == pytest.approx(chosen, abs=1e-5)
        assert found.rank == 1 + int((right[row] > right[row, tokens[row]]).sum())
        values, ids = right[row].topk(4)
        assert [token for token, _ in found.top] == ids.tolist()
        assert [value for _, value in found.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_no_more_tokens_than_the_vocabulary_has() -> None:
    assert len(read(score(torch.zeros(1, 3), torch.tensor([1]), 20), 3).tokens()[0].top) == 3


def test_what_a_row_is_told_does_not_depend_on_its_batch() -> None:
    torch.manual_seed(1)
    logits = torch.randn(3, 30) * 4
    rows = [{"temperature": 0.0, "top_k": 2}, {"temperature": 0.7, "top_k": 5, "seed": 3}, {"temperature": 1.3}]
    for is_processed in (False, True):

        def told(*chosen: int, is_processed: bool = is_processed) -> list[object]:
            flags = torch.tensor([is_processed] * len(chosen)) if is_processed else None
            asked = LogprobRows(tuple(range(len(chosen))), torch.arange(len(chosen)), flags, 3)
            inputs = sampling(*[rows[row] for row in chosen])
            words = sample_scored(logits[list(chosen)], type(inputs)(**{**vars(inputs), "logprobs": asked})).logprobs_NW
            assert words is not None
            return [*read(words, 3).tokens()]

        # Positions and choices are those of the test's rows, so each row alone is drawn as in the batch.
        together = told(0, 1, 2)
        assert together[0] == told(0)[0]


def test_raw_scores_are_those_before_bans_and_processed_ones_behind_them() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.5, -3.0]] * 2)
    asked = LogprobRows((0, 1), torch.arange(2), torch.tensor([False, True]), 2)
    for temperature in (0.0, 1.0):
        row = {"temperature": temperature, "banned": (0,)}
        inputs = sampling(row, row)
        words = sample_scored(logits, type(inputs)(**{**vars(inputs), "logprobs": asked})).logprobs_NW
        assert words is not None
        raw, processed = read(words, 2).tokens()
        right, behind = logits[0].log_softmax(0), torch.tensor([float("-inf"), 1.0, 0.5, -3.0]).log_softmax(0)
        assert [token for token, _ in raw.top] == [0, 1] and [token for token, _ in processed.top] == [1, 2]
        assert [value for _, value in raw.top] == pytest.approx(right[[0, 1]].tolist(), abs=1e-5)
        assert [value for _, value in processed.top] == pytest.approx(behind[[1, 2]].tolist(), abs=1e-5)


def test_processed_scores_are_those_of_the_masked_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.5, -3.0]])
    asked = LogprobRows((0,), torch.tensor([0]), torch.tensor([True]), 4)
    inputs = sampling({"temperature": 0.5, "top_k": 2})
    words = sample_scored(logits, type(inputs)(**{**vars(inputs), "logprobs": asked})).logprobs_NW
    assert words is not None
    (found,) = read(words, 4).tokens()
    right = torch.tensor([4.0, 2.0]).log_softmax(0).tolist()
    assert [value for _, value in found.top] == pytest.approx([*right, float("-inf"), float("-inf")], abs=1e-5)


ANY_LOGIT = st.sampled_from([0.0, -0.0, 1.5, -1.5, 1e-45, -1e-45, 3e38, -3e38, float("inf"), float("-inf")])
TIED_ROWS = st.integers(1, 24).flatmap(
    lambda width: st.lists(st.lists(ANY_LOGIT, min_size=width, max_size=width), min_size=1, max_size=4)
)


@given(TIED_ROWS)
def test_of_equal_logits_the_smaller_id_comes_first(rows: list[list[float]]) -> None:
    width = len(rows[0])
    right = [sorted(range(width), key=lambda token, row=row: (-row[token], token)) for row in rows]  # type: ignore[misc]
    for num_top in range(width + 1):
        assert likeliest(torch.tensor(rows), num_top).tolist() == [each[:num_top] for each in right]


@given(st.data())
def test_what_a_row_is_told_of_ties_does_not_depend_on_its_neighbours(data: st.DataObject) -> None:
    """Rows of a few values over a vocabulary that is wider than any vector register, scored alone and in batches of
    others that ask for more tokens."""
    seed, width = data.draw(st.integers(0, 2**31)), data.draw(st.sampled_from([33, 500, 4099]))
    torch.manual_seed(seed)
    logits = torch.randint(-2, 3, (6, width)).float()
    tokens = torch.randint(0, width, (6,))
    rows = sorted(data.draw(st.sets(st.integers(0, 5), min_size=1)))
    own, num_top = data.draw(st.integers(0, 20)), data.draw(st.integers(20, 30))

    together = read(score(logits[rows], tokens[rows], num_top), num_top).tokens()
    for row, found in zip(rows, together, strict=True):
        alone = read(score(logits[row : row + 1], tokens[row : row + 1], own), own).tokens()[0]
        assert [token for token, _ in found.top][:own] == [token for token, _ in alone.top]
        assert found.rank == alone.rank
