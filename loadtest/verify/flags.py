"""The flags of `baton verify`, and what follows from them."""

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from loadtest.bench_flags import Parser, at_least, number
from loadtest.verify.bounds import Bounds
from loadtest.verify.phases import ASKED_FOR, SMALLEST_VOCAB, check_phase
from loadtest.verify.ties import Noise
from protocol.errors import ConfigError, brief

DEFAULT_VOCAB = 256
FEWEST_ASKS, MOST_ASKS = 2, 8
_SHARE = 12  # of the requests one in so many is a known one, unless that is more than MOST_ASKS: quiet ones take 4
FORM = 1  # of a calibration file


def verify_parser() -> Parser:
    """All flags."""
    parser = Parser(
        prog="baton verify",
        usage="baton verify URL [flags]",
        description="Says whether an OpenAI-compatible server ever answers wrongly under load.",
        epilog="Exit status: 0 clean, 1 found, 2 bad call, 3 cannot judge. docs/verify.md says what it sees.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("url", metavar="URL", help="for example http://127.0.0.1:8000")
    add("--model", type=Path, metavar="DIR", help="the model's folder: transformers judges answers, too")
    add("--name", help="the model's name at the server (default: the first one that it names)")
    add("--api-key-file", metavar="FILE", help="file of keys; the first is sent (default: OPENAI_API_KEY)")

    add = parser.add_argument_group("what the server must bear").add_argument
    add("--cancels", action="store_true", help="clients leave in the middle of their answers")
    add("--churn", type=number(0.01), metavar="X", help="clients join and leave, X a second")
    add("--fault", metavar="CMD", help="runs this command beside requests; errors are allowed meanwhile")

    add = parser.add_argument_group("bounds; the first one that is reached ends the run").add_argument
    default = Bounds()
    add("--minutes", type=number(0.01), default=default.seconds / 60, help="default 10")
    add("--requests", type=at_least(FEWEST_ASKS * 4), default=default.requests, help="default 300")
    add("--tokens", type=at_least(1), default=default.tokens, help="prompts and answers (default 150000)")
    add("--rate", type=number(0.01), default=default.rate, help="requests a second (default 2)")
    add("--together", type=at_least(1), default=default.together, help="requests at once (default 4)")
    add("--hung-after", type=number(0.1), default=default.hung_s, metavar="S", help="seconds (default 30)")

    add = parser.add_argument_group("what is asked").add_argument
    add("--max-tokens", type=at_least(2), default=24, help="of an answer (default 24)")
    add("--vocab-size", type=at_least(SMALLEST_VOCAB), help="prompt ids are below this (default 256, or --model's)")
    add("--seed", type=int, default=0, help="of prompts and phases (default 0)")
    add("--only", metavar="PHASE", help="one phase again and again, to show a finding again")
    add("--calibration", type=Path, metavar="FILE", help="the near tie: read from FILE, or written there")
    add("--out", metavar="DIR", default="none", help="folder of report.json and report.html (default: no files)")
    return parser


def extra_of(asked: argparse.Namespace) -> tuple[str, ...]:
    """The phases that the user has asked for. ConfigError for one that cannot run."""
    if asked.fault is not None and not _words(asked.fault):
        raise ConfigError("--fault: got no command, expected one such as 'kill -9 1234'", param="fault")
    extra = tuple(name for name in ASKED_FOR if getattr(asked, name))
    check_phase(asked.only, extra)
    return extra


def bounds_of(asked: argparse.Namespace) -> Bounds:
    """What the run may cost."""
    return Bounds(asked.requests, asked.tokens, asked.rate, asked.together, 60 * asked.minutes, asked.hung_after)


def num_asks(asked: argparse.Namespace) -> int:
    """How many different requests have a known answer."""
    return max(FEWEST_ASKS, min(MOST_ASKS, int(asked.requests) // _SHARE))


def vocab_of(asked: argparse.Namespace) -> int:
    """Ids of prompts are below this."""
    if asked.vocab_size is not None or asked.model is None:
        return int(asked.vocab_size or DEFAULT_VOCAB)
    try:
        config: dict[str, Any] = json.loads((asked.model / "config.json").read_text())
        return int(config["vocab_size"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        told = f"--model: cannot read the vocabulary of {brief(str(asked.model))}: {error}"
        raise ConfigError(told, param="model") from error


def read_calibration(path: Path | None, model: str, oracles: list[str]) -> dict[str, Noise] | None:
    """The near ties of an earlier run on the same model, if the file is there. ConfigError if it is of another one."""
    if path is None or not path.exists():
        return None
    try:
        told: Any = json.loads(path.read_text())
        noises = {str(name): Noise(**values) for name, values in told["noises"].items()}
        form, of = told["baton_verify_calibration"], told["model"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"--calibration: {brief(str(path))} is none: {error}", param="calibration") from error
    if (form, of) != (FORM, model) or not {*oracles} <= {*noises}:
        told = f"--calibration: got one of {brief(str(of))} for {', '.join(noises)}, expected {brief(model)} and "
        raise ConfigError(f"{told}{', '.join(oracles)}; name another file", param="calibration")
    return noises


def write_calibration(path: Path, model: str, noises: dict[str, Noise]) -> None:
    """Keeps the near ties for later runs."""
    kept = {name: vars(noise) for name, noise in noises.items()}
    path.write_text(json.dumps({"baton_verify_calibration": FORM, "model": model, "noises": kept}, indent=2))


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--fault: {brief(command)}: {error}", param="fault") from error
