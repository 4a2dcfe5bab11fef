"""The load that the flags of `baton bench` describe. Pure, but for the files of prompts that it reads."""

import argparse
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from loadtest.bench_flags import NUM_PROMPTS
from loadtest.drive.talk import CHAT, COMPLETIONS, ChatHistory, History, TextHistory, TokenHistory
from loadtest.figures.slo import parse_slos
from loadtest.measure import Load, Work
from loadtest.work import datasets
from loadtest.work.arrivals import Arrivals, AtOnce, Gamma, Ramp
from loadtest.work.conversations import RandomWork
from loadtest.work.lengths import Lengths
from loadtest.work.trace import TraceWork
from protocol.errors import ConfigError, brief

MOST_TURNS: Final = 64
PATHS: Final[Mapping[str, str]] = {"openai": COMPLETIONS, "vllm": COMPLETIONS, "openai-chat": CHAT}


def load_of(asked: argparse.Namespace, context: int | None) -> Load:
    """The load. `context`: what the endpoint tells, if it does. ConfigError names a flag."""
    slos = parse_slos(asked.goodput)
    if asked.serve is not None and (asked.base_url or asked.api_key_file):
        raise ConfigError(
            "--serve: starts its own servers; expected no --base-url and no --api-key-file", param="serve"
        )
    if asked.intruder_rate and asked.dataset_name not in ("random", "mooncake"):
        raise ConfigError("--intruder-rate: goes with random prompts and traces", param="intruder-rate")
    work = _work(asked, context)
    count = asked.num_prompts
    if isinstance(work, TraceWork):
        if math.isfinite(asked.request_rate) or asked.ramp_up_strategy:
            raise ConfigError(
                "--request-rate: a trace has its own arrivals; expected --time-scale", param="request-rate"
            )
        arrivals: Arrivals = work.arrivals(asked.time_scale)
    else:
        if asked.time_scale != 1.0:
            raise ConfigError("--time-scale goes with --dataset-name mooncake", param="time-scale")
        count = NUM_PROMPTS if count is None and asked.duration is None else count
        arrivals = _arrivals(asked, count)

    return Load(
        work=work, arrivals=arrivals, max_concurrency=asked.max_concurrency, num_conversations=count,
        duration_s=asked.duration, grace_s=asked.grace_period, warmup_s=asked.warmup_s, cooldown_s=asked.cooldown_s,
        num_warmups=asked.num_warmups, num_verified=asked.verify, cancel_share=asked.cancel_share,
        think_s=asked.think_time, intruder_rate=asked.intruder_rate, intruder_tokens=asked.intruder_input_len,
        slos=slos, seed=asked.seed, stops_when_saturated=not asked.keep_going,
    )  # fmt: skip


def _arrivals(asked: argparse.Namespace, count: int | None) -> Arrivals:
    if asked.ramp_up_strategy is None:
        if asked.ramp_up_start_rps is not None or asked.ramp_up_end_rps is not None:
            raise ConfigError("--ramp-up-start-rps and --ramp-up-end-rps go with --ramp-up-strategy")
        if asked.request_rate == math.inf:
            if asked.duration is not None and asked.max_concurrency is None:
                raise ConfigError("--duration: expected --request-rate or --max-concurrency with it", param="duration")
            return AtOnce()
        return Gamma(asked.request_rate, asked.burstiness)

    start, end = asked.ramp_up_start_rps, asked.ramp_up_end_rps
    if start is None or end is None or math.isfinite(asked.request_rate):
        raise ConfigError(
            "--ramp-up-strategy: expected --ramp-up-start-rps and --ramp-up-end-rps, and no --request-rate",
            param="ramp-up-strategy",
        )
    mean = (start + end) / 2
    if asked.ramp_up_strategy == "exponential" and start != end:
        mean = (end - start) / math.log(end / start)
    over_s = asked.duration if asked.duration is not None else (count or NUM_PROMPTS) / mean
    return Ramp(start, end, over_s, asked.ramp_up_strategy, asked.burstiness)


def _work(asked: argparse.Namespace, context: int | None) -> Work:
    name, path = asked.dataset_name, asked.dataset_path
    if (name == "random") != (path is None):
        wanted = "no --dataset-path with it" if name == "random" else "--dataset-path with it"
        raise ConfigError(f"--dataset-name: got {name}, expected {wanted}", param="dataset-name")
    turns = Lengths.parse(asked.num_turns, "--num-turns")

    if name == "random":
        ratio = asked.random_range_ratio
        return RandomWork(
            Lengths.parse(asked.random_input_len, "--random-input-len", ratio),
            Lengths.parse(asked.random_output_len, "--random-output-len", ratio),
            asked.random_prefix_len, asked.num_prefixes, turns, asked.vocab_size, asked.backend == "openai-chat",
        )  # fmt: skip

    if name == "mooncake":
        if asked.backend == "openai-chat":
            raise ConfigError("--backend: a trace has token ids; got openai-chat, expected openai", param="backend")
        return TraceWork.read(path, asked.vocab_size, asked.max_model_len or context)

    length = Lengths.parse(asked.output_len, "--output-len") if asked.output_len else None
    if name == "sharegpt":
        most = int(turns.first) if asked.num_turns != "1" else (MOST_TURNS if asked.backend == "openai-chat" else 1)
        return datasets.sharegpt(path, length, most, asked.seed)
    read = datasets.custom if name == "custom" else datasets.prompts
    return read(path, length or Lengths.parse(asked.random_output_len, "--random-output-len"), asked.seed)


def history_of(asked: argparse.Namespace) -> Callable[[], History]:
    """What keeps a conversation."""
    if asked.backend == "openai-chat":
        return ChatHistory
    return TokenHistory if asked.dataset_name in ("random", "mooncake") else TextHistory


def fields_of(asked: argparse.Namespace) -> dict[str, Any]:
    """The fields of each request, besides the prompt and the length."""
    fixed = asked.ignore_eos or asked.dataset_name in ("random", "mooncake")
    fields: dict[str, Any] = {"temperature": asked.temperature, **({"ignore_eos": True} if fixed else {})}
    if asked.extra_body:
        try:
            extra = orjson.loads(asked.extra_body)
        except orjson.JSONDecodeError:
            extra = None
        if not isinstance(extra, dict):
            raise ConfigError(
                f"--extra-body: got {brief(asked.extra_body)}, expected a JSON object", param="extra-body"
            )
        fields |= extra
    return fields
