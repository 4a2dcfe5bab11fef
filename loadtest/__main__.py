"""`baton bench`, and `python -m loadtest`, which also measures Baton beside its peer without a word.

    baton bench [run]                a load on an endpoint, and its report (bench_command.py)
    baton bench sweep                the largest rate at which enough requests meet the objectives (search.py)
    baton bench compare A B          what differs between two reports
    baton bench peer                 Baton beside vLLM, what `make bench` runs; python -m loadtest is the same
    baton bench peer --compare topology|overlap     one deployment of Baton beside another
    baton bench drive --url URL      the load of `peer` on a server that runs already

The last line of output of `peer` and `drive` is one JSON object.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import uvloop

from loadtest.against_peer import compare_with_peer, show_comparison
from loadtest.bench_command import EXIT_CONFIG, compare_command, new_console, run_command, sweep_command
from loadtest.http_exchange import KEY_VARIABLE, KEYS_VARIABLE, Server
from loadtest.load import PlainLoad, run_load
from loadtest.peer import VARIABLE
from loadtest.report import Figures, figures_table, median_figures
from loadtest.scenarios import SCENARIOS
from loadtest.sides import COMPARISONS, compare_sides, show_sides
from protocol.errors import ConfigError, brief
from runtime.clock import MonotonicClock
from runtime.keys import read_api_keys

T = TypeVar("T")
ROUNDS = 3
WORDS = ("run", "sweep", "compare", "drive", "peer")

# What describes a load: the field, its default, the least value, and what it is.
LOAD: tuple[tuple[str, int, int, str], ...] = (
    ("num", 64, 1, "requests per round"),
    ("concurrency", 16, 1, "requests at a time"),
    ("inp", 256, 1, "prompt tokens"),
    ("out", 64, 1, "output tokens"),
    ("vocab", 512, 2, "prompt ids are below this"),
    ("seed", 0, -(2**63), "of the prompts"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 if any request failed, 2 for wrong arguments or a server that does not start, 130 for Ctrl-C."""
    typed = list(sys.argv[1:] if argv is None else argv)
    is_bench = typed[:1] == ["bench"]  # what `baton bench` becomes
    try:
        if is_bench:
            return bench(typed[1:])
        return bench(typed) if typed and typed[0] in WORDS else _compare(typed)
    except ConfigError as error:
        print(f"{'baton bench' if is_bench else 'loadtest'}: error: {error.message}", file=sys.stderr)
        return EXIT_CONFIG
    except (KeyboardInterrupt, asyncio.CancelledError):  # all that was started has ended
        return 130


def bench(typed: Sequence[str]) -> int:
    """`baton bench ...`: the exit status. ConfigError for wrong flags, reports or endpoints."""
    word, rest = (typed[0], typed[1:]) if typed and not typed[0].startswith("-") else ("run", typed)
    if word not in WORDS:
        raise ConfigError(f"got {brief(word)}, expected one of {', '.join(WORDS)}")
    commands = {
        "run": run_command,
        "sweep": sweep_command,
        "compare": compare_command,
        "drive": _drive,
        "peer": _compare,
    }
    return commands[word](rest)


def guarded_run(job: Coroutine[Any, Any, T]) -> T:
    """Runs `job` to its end. SIGTERM ends it like Ctrl-C, with everything that it has started."""

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await job

    return uvloop.run(guarded())


def _compare(typed: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest",
        description="Measures Baton on this machine. `python -m loadtest drive --help`: drive a server that runs.",
        epilog=f"--compare peer takes its peer from {VARIABLE}, the path of a vllm executable.",
    )

    choices = ("peer", *sorted(COMPARISONS))
    parser.add_argument("--compare", choices=choices, default="peer", help="with what (default peer)")
    parser.add_argument("--rounds", type=_at_least(1), default=ROUNDS, help="rounds of each side (default 3)")
    parser.add_argument("--quick", action="store_true", help="peer: one small round; shows that it works, no more")
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--scenario", choices=names, help="peer: this deployment alone (default: each of them)")
    _add_load(parser, "topology, overlap: ")
    parser.add_argument("serve", nargs="*", help="further arguments of baton serve, after --")

    asked = parser.parse_args(typed)
    console = new_console()

    if asked.compare != "peer":
        if asked.quick:
            parser.error(f"--quick goes with --compare peer, got --compare {asked.compare}")
        if asked.scenario:
            parser.error(f"--scenario goes with --compare peer, got --compare {asked.compare}")

        load = _load(asked)
        sides = COMPARISONS[asked.compare]
        found = guarded_run(compare_sides(sides, load, asked.rounds, asked.serve, MonotonicClock(), console))
        print(json.dumps(show_sides(found, load, console, asked.markdown)))
        return _status(sum(each.num_errors for rounds in found.values() for each in rounds))

    for name, *_ in LOAD:
        if getattr(asked, name) is not None:
            parser.error(f"--{name} goes with --compare topology or overlap: the loads beside the peer are fixed")

    rounds = 1 if asked.quick else asked.rounds
    scenarios = tuple(scenario for scenario in SCENARIOS if asked.scenario in (None, scenario.name))
    compared = guarded_run(compare_with_peer(rounds, asked.quick, asked.serve, MonotonicClock(), console, scenarios))
    print(json.dumps(show_comparison(compared, console, asked.markdown)))
    return _status(compared.num_errors())


def _drive(typed: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest drive",
        description="Drives POST /v1/completions of any OpenAI server with prompts of random token ids.",
        epilog=f"A key comes from --api-key-file, {KEY_VARIABLE}, or the file that {KEYS_VARIABLE} names. "
        "Ends with status 1 if any request failed.",
    )

    parser.add_argument("--url", required=True, help="for example http://127.0.0.1:8000")
    parser.add_argument("--model", help="the model's name (default: the first one that the server names)")
    parser.add_argument("--api-key-file", metavar="FILE", help="file of keys as of baton serve; the first is sent")
    _add_load(parser, "")
    parser.add_argument(
        "--rate", type=_rate, default=0.0, help="open loop: requests a second, instead of --concurrency"
    )
    parser.add_argument("--intruder-rate", type=_rate, default=0.0, help="long prompts a second beside the others")
    parser.add_argument("--intruder-inp", type=_at_least(1), default=1500, help="their length in tokens (default 1500)")

    asked = parser.parse_args(typed)
    console = new_console()
    if asked.rate and asked.concurrency is not None:
        parser.error("--rate sends however many requests still run; got --concurrency too")
    load = _load(asked, asked.rate, asked.intruder_rate, asked.intruder_inp)

    key = None if asked.api_key_file is None else read_api_keys(asked.api_key_file)[0]
    found: Figures = guarded_run(run_load(Server.at(asked.url, key), MonotonicClock(), load, asked.model))

    console.print(load.words())
    console.print(figures_table({"value": [found]}, {}, asked.markdown))
    if found.first_error:
        console.print(f"{found.num_errors} requests failed: {found.first_error}")

    medians = median_figures([found])
    print(json.dumps({"bench": "drive", **medians, "first_error": found.first_error}))
    return _status(found.num_errors)


def _add_load(parser: argparse.ArgumentParser, of: str) -> None:
    for name, default, least, what in LOAD:  # without a default for the parser: a load beside the peer takes none
        parser.add_argument(f"--{name}", type=_at_least(least), help=f"{of}{what} (default {default})")
    parser.add_argument("--markdown", action="store_true", help="tables that can be pasted into a page")


def _load(
    asked: argparse.Namespace, rate: float = 0.0, intruder_rate: float = 0.0, intruder_tokens: int = 1500
) -> PlainLoad:
    given = [getattr(asked, name) for name, *_ in LOAD]
    values = [default if value is None else value for value, (_, default, *_) in zip(given, LOAD, strict=True)]
    return replace(PlainLoad(*values), rate=rate, intruder_rate=intruder_rate, intruder_tokens=intruder_tokens)


def _status(num_errors: int) -> int:
    return 1 if num_errors else 0


def _at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"got {value}, expected at least {least}")
        return value

    parse.__name__ = "int"  # argparse names it in the error for what is no integer
    return parse


def _rate(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"got {text}, expected a number above 0")
    return value


if __name__ == "__main__":
    raise SystemExit(main())
