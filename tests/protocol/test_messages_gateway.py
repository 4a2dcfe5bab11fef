import pytest

from protocol.messages_gateway import TO_WORKER, Assign, FinishReason, SamplingParams, finish_reason

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    "params,num_outputs,last,expected",
    [
        (SamplingParams(3), 1, 5, None),
        (SamplingParams(3), 3, 5, LENGTH),
        (SamplingParams(3, eos_token_ids=(5, 6)), 1, 6, STOP),
        (SamplingParams(3, eos_token_ids=(5,)), 3, 5, STOP),  # both at once: the model has stopped
        (SamplingParams(3, eos_token_ids=(5,), ignore_eos=True), 1, 5, None),
        (SamplingParams(3, eos_token_ids=(5,), ignore_eos=True), 3, 5, LENGTH),
        (SamplingParams(3, eos_token_ids=(5,), stop_token_ids=(5,), ignore_eos=True), 1, 5, STOP),
        (SamplingParams(3, stop_token_ids=(7,)), 1, 7, STOP),
        (SamplingParams(9, min_tokens=2, stop_token_ids=(7,)), 1, 7, None),
        (SamplingParams(9, min_tokens=2, stop_token_ids=(7,)), 2, 7, STOP),
        (SamplingParams(1, min_tokens=2, stop_token_ids=(7,)), 1, 7, LENGTH),
        (SamplingParams(1), 1, 0, LENGTH),
    ],
)
def test_when_a_choice_ends(params: SamplingParams, num_outputs: int, last: int, expected: FinishReason | None) -> None:
    assert finish_reason(params, num_outputs, last) is expected


def test_ending_ids() -> None:
    params = SamplingParams(3, eos_token_ids=(5, 6), stop_token_ids=(6, 7))
    assert params.ending_ids == {5, 6, 7}
    assert SamplingParams(3, eos_token_ids=(5, 6), stop_token_ids=(6, 7), ignore_eos=True).ending_ids == {6, 7}
    assert SamplingParams(3).ending_ids == frozenset()


def test_seeds_use_all_64_bits() -> None:
    for seed in (0, -1, -(2**63), 2**63, 2**64 - 1):
        assign = Assign("r", 0, (1,), SamplingParams(1, seed=seed), 1, None)
        assert TO_WORKER.decode(TO_WORKER.encode(assign)) == assign


@pytest.mark.parametrize("prompt,most,replayed,expected", [(7, 1, 0, (1, 7)), (7, 2, 0, (2, 8)), (9, 20, 4, (16, 24))])
def test_the_last_output_needs_no_kv(prompt: int, most: int, replayed: int, expected: tuple[int, int]) -> None:
    assign = Assign("r", 0, (1,) * prompt, SamplingParams(most), 1, None, num_replayed=replayed)
    assert (assign.num_left, assign.num_tokens) == expected
