import pytest
import torch
from torch import Tensor

import model.sampler
from model.logprobs import LogprobRows, score
from model.sampler import AskingRows, ParamColumns, SamplingInput, sample_scored
from protocol.logprobs import TokenLogprob, row_of

VOCAB = 50


def read(words_NW: Tensor) -> list[TokenLogprob]:
    num_top = (words_NW.shape[1] - 2) // 2
    rows = [row_of(num_top).unpack(row.numpy().tobytes()) for row in words_NW]
    return [TokenLogprob(row[0], row[1], tuple(zip(row[2::2], row[3::2], strict=True))) for row in rows]


def scaled(num_rows: int) -> Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(num_rows)) * 4


@pytest.mark.parametrize("num_top", [0, 1, 5, VOCAB, VOCAB + 3])
def test_they_are_those_of_log_softmax(num_top: int) -> None:
    logits_NV = scaled(4)
    tokens_N = torch.tensor([0, 7, 49, int(logits_NV[3].argmax())])
    expected_NV = logits_NV.double().log_softmax(-1)
    for row, found in enumerate(read(score(logits_NV, tokens_N, num_top))):
        token = int(tokens_N[row])
        assert found.logprob == pytest.approx(float(expected_NV[row, token]), abs=1e-5)
        assert found.rank == 1 + int((expected_NV[row] > expected_NV[row, token]).sum())
        values, ids = expected_NV[row].topk(min(num_top, VOCAB))
        assert [each for each, _ in found.top] == ids.tolist()
        assert [value for _, value in found.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_what_cannot_be_drawn_has_minus_infinity() -> None:
    logits_NV = torch.tensor([[0.0, float("-inf"), 1.0]])
    [found] = read(score(logits_NV, torch.tensor([1]), 3))
    assert found.logprob == float("-inf") and found.rank == 3
    assert found.top[-1] == (1, float("-inf"))


def test_none_is_above_0() -> None:
    logits_NV = torch.tensor([[80.0, 0.0]], dtype=torch.float32)
    assert read(score(logits_NV, torch.tensor([0]), 1))[0].logprob <= 0


def sampling(
    rows: tuple[int, ...], temperature: list[float], processed: list[bool] | None = None, top_k: int = 0
) -> SamplingInput:
    num_rows = len(temperature)
    temperature_L = torch.tensor(temperature)
    params = ParamColumns(
        temperature_L=temperature_L,
        top_k_L=torch.full((num_rows,), top_k),
        top_p_L=torch.ones(num_rows),
        min_p_L=torch.zeros(num_rows),
        seed_L=torch.arange(num_rows),
        choice_L=torch.zeros(num_rows, dtype=torch.int64),
    )
    masked = torch.arange(num_rows) if top_k else None
    asking = AskingRows(masked, None, None, all_greedy=not any(temperature))
    processed_N = None if processed is None else torch.tensor(processed)
    logprobs = LogprobRows(rows, torch.tensor(rows), processed_N, 2) if rows else None
    return SamplingInput(params, asking, torch.arange(num_rows), None, logprobs=logprobs)


@pytest.mark.parametrize("temperature", [[0.0, 0.0, 0.0], [0.0, 0.7, 1.3]])
def test_those_of_the_rows_that_ask_come_from_the_model_s_own_logits(temperature: list[float]) -> None:
    logits_LV = scaled(3)
    tokens_L, words_NW = sample_scored(logits_LV, sampling((0, 2), temperature))
    assert words_NW is not None and len(words_NW) == 2
    expected_LV = logits_LV.double().log_softmax(-1)
    for row, found in zip((0, 2), read(words_NW), strict=True):
        assert found.logprob == pytest.approx(float(expected_LV[row, tokens_L[row]]), abs=1e-5)


def test_processed_ones_are_of_what_the_token_was_drawn_from() -> None:
    logits_LV, temperature = scaled(3), [0.0, 0.7, 0.7]
    tokens_L, words_NW = sample_scored(logits_LV, sampling((0, 1, 2), temperature, [True, True, False], top_k=3))
    assert words_NW is not None
    greedy, drawn, raw = read(words_NW)
    kept_V = logits_LV[1] / 0.7
    kept_V = kept_V.masked_fill(kept_V < kept_V.topk(3).values[-1], float("-inf")).double().log_softmax(-1)
    assert drawn.logprob == pytest.approx(float(kept_V[tokens_L[1]]), abs=1e-5)
    assert greedy.logprob == pytest.approx(float(logits_LV[0].double().log_softmax(-1)[tokens_L[0]]), abs=1e-5)
    assert raw.logprob == pytest.approx(float(logits_LV[2].double().log_softmax(-1)[tokens_L[2]]), abs=1e-5)


@pytest.mark.parametrize("temperature", [[0.0, 0.0], [0.0, 0.7]])
def test_asking_changes_no_token_and_not_asking_costs_nothing(
    temperature: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    logits_LV = scaled(2)
    asked = sample_scored(logits_LV, sampling((0, 1), temperature)).tokens_L

    def never(*args: object) -> Tensor:
        raise AssertionError("nobody asks")

    monkeypatch.setattr(model.sampler, "score", never)
    found = sample_scored(logits_LV, sampling((), temperature))
    assert found.logprobs_NW is None and torch.equal(found.tokens_L, asked)
