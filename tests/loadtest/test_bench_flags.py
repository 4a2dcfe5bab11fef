"""Flags of `baton bench` that cannot be read are one sentence."""

import pytest

from loadtest.bench_flags import bench_parser
from protocol.errors import ConfigError


def test_defaults_are_a_load_that_a_small_model_serves() -> None:
    asked = bench_parser().parse_args([])
    assert (asked.port, asked.request_rate, asked.random_input_len, asked.seed) == (8000, float("inf"), "256", 0)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--request-rate 0", "--request-rate: got '0', expected a number of at least 1e-06"),
        ("--request-rate nan", "--request-rate: got 'nan', expected"),
        ("--max-concurrency x", "--max-concurrency: got 'x', expected an integer of at least 1"),
        ("--cancel-share 1.5", "--cancel-share: got '1.5', expected a number from 0 to 1"),
        ("--num-prompt 5", "unrecognized arguments: --num-prompt 5"),
        ("--dataset-name wiki", "--dataset-name: invalid choice: 'wiki'"),
    ],
)
def test_a_wrong_flag_is_one_sentence(typed: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bench_parser().parse_args(typed.split())
    assert caught.value.message.startswith(words)


def test_flags_of_other_tools_mean_the_same() -> None:
    typed = "--url http://h:1 --result-dir d --sharegpt-output-len 7 --num-prompts 3 --burstiness 0.5 --backend vllm"
    asked = bench_parser().parse_args(typed.split())
    assert (asked.base_url, asked.out, asked.output_len, asked.num_prompts) == ("http://h:1", "d", "7", 3)
