"""`baton verify URL`: probes a server, runs the phases, and writes what was found.

Exit statuses: 0 clean, 1 found, 2 a bad call, 3 cannot judge, 130 for Ctrl-C.
"""

import argparse
import asyncio
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import uvloop
from rich.console import Console

from loadtest.bench_command import new_console
from loadtest.http_exchange import Server
from loadtest.verify.client import Client
from loadtest.verify.findings import Exit, Result, as_json
from loadtest.verify.flags import (
    bounds_of,
    extra_of,
    num_asks,
    read_calibration,
    verify_parser,
    vocab_of,
    write_calibration,
)  # fmt: skip
from loadtest.verify.phases import made_asks
from loadtest.verify.probe import Dialect, probe
from loadtest.verify.quiet import REPEAT
from loadtest.verify.run import Plan, Run
from loadtest.verify.scoring import Scorer, ServerScorer
from loadtest.verify.shown import page_of, progress_bar, show_result
from protocol.errors import ConfigError, brief
from runtime.clock import MonotonicClock
from runtime.installation import baton_version
from runtime.keys import read_api_keys


def verify_command(typed: Sequence[str]) -> int:
    """`baton verify`. ConfigError for what cannot be run."""
    asked = verify_parser().parse_args(typed)
    extra_of(asked)  # what is wrong in the flags is told before anybody is asked
    return int(uvloop.run(verify(asked, typed, new_console())))


async def verify(asked: argparse.Namespace, typed: Sequence[str], console: Console) -> Exit:
    """Probes, runs, shows and writes."""
    clock = MonotonicClock()
    key = None if asked.api_key_file is None else read_api_keys(asked.api_key_file)[0]
    server = Server.at(asked.url, key)
    folder = _folder(asked.out)
    vocab = vocab_of(asked)
    dialect = await probe(server, clock, asked.name)
    client = Client(server, clock, dialect, bounds_of(asked))
    scorers = _scorers(asked, client)

    made = made_asks(asked.seed, num_asks(asked), vocab, asked.max_tokens, dialect.context)
    names = [REPEAT, *(scorer.name for scorer in scorers)]
    noises = read_calibration(asked.calibration, dialect.model, names)
    plan = Plan(made, asked.seed, extra_of(asked), asked.fault or "", asked.churn or 1.0, asked.only, noises)
    result = Result(_oracles(dialect, scorers))
    try:
        with progress_bar(console, asked.requests) as show:
            await Run(client, plan, scorers, result, lambda name: show(name, client.spent.requests)).run()
    except asyncio.CancelledError:  # Ctrl-C: what has been found so far is told
        result.stopped = "Ctrl-C"
        raise
    finally:
        _report(result, _about(client, typed), folder, console)

    if asked.calibration is not None and noises is None and not result.unsure:
        write_calibration(asked.calibration, dialect.model, result.noises)
    return result.exit


def _report(result: Result, about: Mapping[str, Any], folder: Path | None, console: Console) -> None:
    """Shows what was found, and writes it."""
    show_result(console, result)
    if folder is not None:
        (folder / "report.json").write_bytes(orjson.dumps(as_json(result, about), option=orjson.OPT_INDENT_2))
        (folder / "report.html").write_text(page_of(result, about))
        console.print(f"report: {folder / 'report.html'}", highlight=False)


def _scorers(asked: argparse.Namespace, client: Client) -> list[Scorer]:
    dialect, scorers = client.dialect, list[Scorer]()
    if dialect.way:
        fields = {"model": dialect.model}
        scorers.append(ServerScorer(client.server, client.clock, dialect.way, fields, asked.hung_after))
    if asked.model is not None:
        if not dialect.has_ids:
            raise ConfigError("--model: the server tells no token ids, so the folder cannot judge it", param="model")
        from loadtest.verify.folder import FolderScorer  # noqa: PLC0415  # needs transformers: nothing else does

        scorers.append(FolderScorer(asked.model))
    return scorers


def _oracles(dialect: Dialect, scorers: Sequence[Scorer]) -> dict[str, str]:
    """The five oracles, each with what it can do here."""
    names = [scorer.name for scorer in scorers]
    no_ids = "not here: the server tells no token ids" if not dialect.has_ids else "not here: it scores no prompt"
    return {
        "repeat": "by log-probabilities" if dialect.has_logprobs else "by tokens alone: near ties cannot be judged",
        "rescore": f"by {dialect.way}" if "rescore" in names else no_ids,
        "folder": "transformers, float32" if "folder" in names else "not here: --model DIR",
        "canary": "needles in prompts, known answers",
        "books": f"usage, ends, gauges{'' if dialect.has_ids else '; tokens cannot be counted'}",
    }


def _folder(out: str) -> Path | None:
    if out == "none":
        return None
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out: cannot make {brief(out)}: {error}", param="out") from error
    return Path(out)


def _about(client: Client, typed: Sequence[str]) -> dict[str, Any]:
    """Where the report was made. No secrets."""
    spent, seconds = client.spent, client.clock.now() - client.began_s
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["baton", "verify", *typed]),
        "endpoint": str(client.server),
        "model": client.dialect.model,
        "refused_fields": ", ".join(sorted(client.dialect.refused)) or None,
        "versions": {"baton": baton_version()},
        "cost": {"requests": spent.requests, "tokens": spent.tokens, "seconds": round(seconds, 1)},
    }
