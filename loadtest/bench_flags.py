"""The flags of `baton bench`. Those that `vllm bench serve` or aiperf have, too, mean the same.

They are flags only, no variables and no keys of a file: docs/bench.md says why.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any, Final, NoReturn

from protocol.errors import ConfigError, brief

NUM_PROMPTS: Final = 200
BACKENDS: Final = ("openai", "vllm", "openai-chat")
DATASETS: Final = ("random", "sharegpt", "custom", "prompts", "mooncake")
Add = Callable[..., Any]


class Parser(argparse.ArgumentParser):
    """Raises ConfigError where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


def bench_parser(command: str = "run") -> Parser:
    """All flags of `run`, in groups. A sweep has them, too."""
    parser = Parser(
        prog="baton bench",
        usage="baton bench [run|sweep] [flags] | compare A B" if command == "run" else f"baton bench {command} [flags]",
        description="Puts a load on an OpenAI-compatible endpoint and says how it served.",
        epilog="docs/bench.md defines every figure. Ctrl-C ends the run and writes the report of what ran.",
        allow_abbrev=False,
    )

    _endpoint(parser.add_argument_group("endpoint").add_argument)
    _arrivals(parser.add_argument_group("arrivals").add_argument)
    _work(parser.add_argument_group("work").add_argument)
    _run(parser.add_argument_group("run").add_argument)
    add = parser.add_argument_group("report").add_argument
    add("--out", "--result-dir", metavar="DIR", help="folder (default bench-results/TIME; none: no files)")
    add("--markdown", action="store_true", help="tables that can be pasted into a page")
    return parser


def sweep_flags(parser: Parser) -> None:
    """Those that a sweep has alone."""
    add = parser.add_argument_group("sweep (needs --goodput; each run has --duration, or --num-prompts)").add_argument
    add("--target-share", type=number(0.01, 1.0), default=0.9, help="of the requests that must meet them (0.9)")
    add("--most-runs", type=at_least(2), default=10, help="runs at most (10)")
    add("--precision", type=number(1.01), default=1.1, help="done when the rate is known to this factor (1.1)")


def _endpoint(add: Add) -> None:
    add("--base-url", "--url", metavar="URL", help="for example http://127.0.0.1:8000 (default: --host and --port)")
    add("--host", default="127.0.0.1", help="default 127.0.0.1")
    add("--port", type=at_least(1), default=8000, help="default 8000")
    add("--model", help="the model's name (default: the first one that the endpoint names)")
    add("--backend", choices=BACKENDS, default="openai", help="openai: /v1/completions; openai-chat: chat completions")
    add("--api-key-file", metavar="FILE", help="file of keys; the first is sent (default: OPENAI_API_KEY)")
    add("--extra-body", metavar="JSON", help="fields that are added to each request")
    add("--temperature", type=number(0.0), default=0.0, help="default 0")
    add("--ignore-eos", action="store_true", help="answers have their full length (always so for random and mooncake)")
    add("--request-timeout-seconds", type=number(0.001), default=600.0, help="a request has failed by then (600)")
    add("--tokenizer", metavar="DIR", help="counts tokens where the endpoint does not tell")
    add(
        "--serve", action="append", metavar="ARGS", help="starts `baton serve ARGS` instead; may be repeated to compare"
    )


def _arrivals(add: Add) -> None:
    add("--request-rate", type=number(1e-6), default=math.inf, help="conversations a second (default inf: at once)")
    add("--burstiness", type=number(1e-3), default=1.0, help="shape of the gaps: 1 is Poisson, less is burstier")
    add("--max-concurrency", type=at_least(1), help="conversations at a time; with rate inf: a closed loop")
    add("--ramp-up-strategy", choices=("linear", "exponential"), help="the rate goes from start to end over the run")
    add("--ramp-up-start-rps", type=number(1e-6), help="rate at the start")
    add("--ramp-up-end-rps", type=number(1e-6), help="rate at the end")
    add("--time-scale", type=number(1e-6), default=1.0, help="mooncake: so many times as fast")
    add("--think-time", type=number(0.0), default=0.0, help="mean seconds that a client waits after an answer")
    add("--intruder-rate", type=number(1e-6), default=0.0, help="long prompts a second beside the load, counted apart")
    add("--intruder-input-len", "--intruder-inp", type=at_least(1), default=1500, help="their tokens (1500)")
    add("--cancel-share", type=number(0.0, 1.0), default=0.0, help="share of clients that leave within their answer")


def _work(add: Add) -> None:
    add("--dataset-name", choices=DATASETS, default="random", help="default random")
    add("--dataset-path", metavar="FILE", help="of every other data set")
    add("--random-input-len", default="256", metavar="LENGTH", help="N, uniform:LOW:HIGH, normal:MEAN:DEVIATION, ...")
    add("--random-output-len", default="64", metavar="LENGTH", help="the same for answers")
    add("--random-range-ratio", type=number(0.0, 1.0), default=0.0, help="lengths from N * (1 - R) to N * (1 + R)")
    add("--random-prefix-len", type=at_least(0), default=0, help="tokens before each prompt that all share")
    add("--num-prefixes", type=at_least(1), default=1, help="such prefixes; each prompt has one of them")
    add("--num-turns", default="1", metavar="LENGTH", help="turns of a conversation (random; at most, for sharegpt)")
    add("--output-len", "--sharegpt-output-len", "--custom-output-len", metavar="LENGTH", help="answers, for files")
    add("--vocab-size", type=at_least(16), default=512, help="random token ids are below this (512)")
    add(
        "--max-model-len",
        type=at_least(2),
        help="mooncake: lengths are scaled to it (default: what the endpoint tells)",
    )


def _run(add: Add) -> None:
    add("--num-prompts", type=at_least(1), help=f"conversations (default {NUM_PROMPTS}, unless --duration or a trace)")
    add("--duration", type=number(0.001), metavar="SECONDS", help="nothing is sent later")
    add("--grace-period", type=number(0.0), default=30.0, help="seconds for answers after --duration (30)")
    add("--num-warmups", type=at_least(0), default=0, help="conversations before the run, which count nowhere")
    add("--warmup-s", type=number(0.0), default=0.0, help="seconds of the run before anything is measured")
    add("--cooldown-s", type=number(0.0), default=0.0, help="seconds at the end that are not measured")
    add("--repeat", type=at_least(1), default=1, help="runs, each with prompts of its own")
    add("--seed", type=int, default=0, help="of prompts and arrivals")
    add("--goodput", nargs="+", default=[], metavar="NAME:MS", help="objectives: ttft:500 itl:50 e2e:5000 gap:200")
    add("--verify", type=at_least(0), default=0, metavar="N", help="compare N greedy answers with a first pass")
    add("--keep-going", action="store_true", help="do not stop when the server is over-saturated")


def at_least(least: int) -> Callable[[str], int]:
    """Reads an integer for argparse."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"got {brief(text)}, expected an integer of at least {least}")
        return value

    return parse


def number(least: float, most: float = math.inf) -> Callable[[str], float]:
    """Reads a number for argparse."""
    expected = f"a number of at least {least:g}" if most == math.inf else f"a number from {least:g} to {most:g}"

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"got {brief(text)}, expected {expected}")
        return value

    return parse
