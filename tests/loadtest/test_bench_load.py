"""Flags become a load, and those that contradict one another are named."""

import json
import math
from pathlib import Path

import pytest

from loadtest.bench_flags import NUM_PROMPTS, bench_parser
from loadtest.bench_load import fields_of, history_of, load_of
from loadtest.drive.talk import ChatHistory, TextHistory, TokenHistory
from loadtest.measure import Load
from loadtest.work.arrivals import AtOnce, Gamma, Ramp, Replay
from loadtest.work.conversations import RandomWork
from loadtest.work.lengths import Lengths
from protocol.errors import ConfigError


def load(typed: str, context: int | None = None) -> Load:
    return load_of(bench_parser().parse_args(typed.split()), context)


def test_a_rate_is_an_open_loop_and_none_a_closed_one() -> None:
    assert load("--request-rate 4 --burstiness 0.5").arrivals == Gamma(4.0, 0.5)
    closed = load("--max-concurrency 8")
    assert (closed.arrivals, closed.is_open, closed.num_conversations) == (AtOnce(), False, NUM_PROMPTS)
    assert load("--request-rate 4 --duration 9").num_conversations is None


@pytest.mark.parametrize(("strategy", "over_s"), [("linear", 100 / 5), ("exponential", 100 / ((8 - 2) / math.log(4)))])
def test_a_ramp_lasts_as_long_as_its_prompts(strategy: str, over_s: float) -> None:
    typed = f"--ramp-up-strategy {strategy} --ramp-up-start-rps 2 --ramp-up-end-rps 8 --num-prompts 100"
    arrivals = load(typed).arrivals
    assert isinstance(arrivals, Ramp) and arrivals.over_s == pytest.approx(over_s)
    moments = arrivals.moments(1)
    assert [at for at, _ in zip(moments, range(100), strict=False)][-1] == pytest.approx(over_s, rel=0.3)
    assert load(typed + " --duration 7").arrivals == Ramp(2, 8, 7.0, arrivals.strategy)


def test_random_work_has_the_lengths_asked_for() -> None:
    made = load("--random-input-len 100 --random-range-ratio 0.5 --random-prefix-len 9 --num-prefixes 3 --num-turns 2")
    assert isinstance(made.work, RandomWork)
    assert (made.work.prompt.ratio, made.work.prefix_tokens, made.work.num_prefixes) == (0.5, 9, 3)
    assert made.work.num_turns == Lengths("fixed", 2) and not made.work.as_text
    chat = load("--backend openai-chat")
    assert isinstance(chat.work, RandomWork) and chat.work.as_text


def test_a_trace_brings_its_arrivals_and_fits_the_model(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    line = {"timestamp": 0, "input_length": 1000, "output_length": 10, "hash_ids": [1, 2]}
    path.write_text("\n".join(json.dumps({**line, "timestamp": number * 1000}) for number in range(3)))
    made = load(f"--dataset-name mooncake --dataset-path {path} --time-scale 2", context=300)
    assert made.arrivals == Replay([0.0, 1.0, 2.0], 2.0) and made.num_conversations is None
    [turn] = next(made.conversations(0)).turns
    assert len(turn.said) < 300
    [longer] = next(
        load(f"--dataset-name mooncake --dataset-path {path} --max-model-len 600", 300).conversations(0)
    ).turns
    assert 300 < len(longer.said) < 600


def test_prompts_of_a_file_have_the_length_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text("hello\nthere\n")
    made = load(f"--dataset-name prompts --dataset-path {path} --output-len 9 --cancel-share 1 --think-time 1")
    conversation = next(made.conversations(0))
    assert conversation.turns[0].max_tokens == 9 and conversation.turns[0].cancel_after and conversation.pause_s > 0


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--goodput ttft", "--goodput: got 'ttft'"),
        ("--dataset-name sharegpt", "--dataset-name: got sharegpt, expected --dataset-path with it"),
        ("--dataset-path x", "--dataset-name: got random, expected no --dataset-path with it"),
        ("--duration 5", "--duration: expected --request-rate or --max-concurrency with it"),
        ("--ramp-up-end-rps 5", "--ramp-up-start-rps and --ramp-up-end-rps go with --ramp-up-strategy"),
        ("--ramp-up-strategy linear --ramp-up-end-rps 5", "--ramp-up-strategy: expected --ramp-up-start-rps"),
        ("--serve= --url http://h:1", "--serve: starts its own servers; expected no --base-url"),
        ("--dataset-name prompts --dataset-path x --intruder-rate 1", "--intruder-rate: goes with random prompts"),
        ("--time-scale 2", "--time-scale goes with --dataset-name mooncake"),
        ("--random-input-len few", "--random-input-len: got 'few', expected N, "),
        ("--dataset-name mooncake --dataset-path x --backend openai-chat", "--backend: a trace has token ids"),
    ],
)
def test_a_contradiction_is_one_sentence(typed: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(typed)
    assert caught.value.message.startswith(words)


def test_a_trace_with_a_rate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}')
    with pytest.raises(ConfigError, match=r"^--request-rate: a trace has its own arrivals"):
        load(f"--dataset-name mooncake --dataset-path {path} --request-rate 3")


def test_requests_have_the_fields_of_their_work() -> None:
    def asked(typed: list[str]) -> dict[str, object]:
        return fields_of(bench_parser().parse_args(typed))

    assert asked([]) == {"temperature": 0.0, "ignore_eos": True}
    path = ["--dataset-name", "prompts", "--dataset-path", "x"]
    assert asked(path) == {"temperature": 0.0} and asked([*path, "--ignore-eos"])["ignore_eos"] is True
    assert asked(["--extra-body", '{"top_p": 0.5, "temperature": 1}'])["temperature"] == 1
    with pytest.raises(ConfigError, match=r"^--extra-body: got '\[\]', expected a JSON object"):
        asked(["--extra-body", "[]"])


def test_what_keeps_a_conversation_follows_from_its_work() -> None:
    kinds = [
        history_of(bench_parser().parse_args(typed.split()))
        for typed in ("", "--backend openai-chat", "--dataset-name prompts")
    ]
    assert kinds == [TokenHistory, ChatHistory, TextHistory]
