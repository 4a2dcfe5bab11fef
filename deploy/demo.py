"""`baton demo`: one prefill and one decode worker, one answer streamed to the terminal, its time line, the end.

The request runs in its own thread, and the main thread watches the processes. The time line is a table: what happened,
where, when, and a bar for the time that this took. The bars' scale ends at the first decode step. The later steps take
many times as long, so one row tells them in words. With a draft, the tokens that it has proposed are in colour.
"""

import http.client
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console as RichConsole
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer

from deploy.console import Console
from deploy.launcher import Launcher, StartFailed, Stopped
from deploy.layout import GATEWAY, serve_plan
from deploy.machine import count_cores, count_gpus, read_gpus
from deploy.model_folder import find_model, has_tokenizer, model_name, with_hub_folders
from deploy.sentences import TOKEN_IDS, describe_end, describe_workers
from deploy.serve import check_lengths, find_texts, start_plan
from protocol.errors import BatonError, ConfigError, brief
from runtime.clock import Clock, MonotonicClock
from runtime.keys import read_api_keys
from runtime.layered_config import Config, Origin
from runtime.process_life import StopSignal

Decode = Callable[[Sequence[int]], str]
PROPOSED = "bold green"
SEED = 1  # the same story each time, with a draft and without
_TIMEOUT_S = 120.0
MAX_WIDTH = 120
FIRST_DECODE = "first decode"
RUN_CUT = "run cut"  # the answer ended within what the last launch had kept
NOTE = "+ms and bar: since the moment before in the same process; for a process's first moment, since the row above."
_MIN_BAR = 10
_GAP = 2
_HEADINGS = ("ms", "+ms", "where", "what", "")
_STYLES = ("cyan", "magenta", "green", "yellow", "blue")


class DemoFailed(BatonError):
    """The request was not answered."""

    code = "demo_failed"


@dataclass(frozen=True)
class Moment:
    """One event of a request. `at_ms` counts from the request's arrival at the gateway."""

    name: str
    at_ms: float
    worker: str


@dataclass(frozen=True)
class Answer:
    """What is told of an answer. `seconds` are by the client's clock."""

    num_tokens: int
    moments: tuple[Moment, ...]
    seconds: float
    num_proposed: int | None = None  # tokens that a draft has proposed; None: there is no draft
    is_cut: bool = False  # it ended within what a launch had kept, so that the last token was proposed, too


def demo(config: Config, console: Console) -> int:
    """Runs the demonstration; returns the exit status."""
    config = with_hub_folders(config)
    model = find_model(config["model"], config["revision"])
    check_lengths(config, model, console)
    texts = find_texts(config, model)
    asked = prompt_fields(config, texts)
    name = model_name(model)
    gpus = read_gpus(config["gpus"], config["device"], count_gpus(config["device"]))
    plan = serve_plan(config, model, name, count_cores(), gpus=gpus)
    keys_file = config.path("api-key-file")
    api_key = "" if keys_file is None else read_api_keys(keys_file)[0]

    clock = MonotonicClock()
    began = clock.now()
    # the executor is the first, so the last to close: a request that still runs ends with the gateway
    with ThreadPoolExecutor(1) as requests, StopSignal() as stop, Launcher(console, stop, clock) as launcher:
        try:
            url = str(start_plan(launcher, plan)[GATEWAY]["http"])
            workers = describe_workers(plan.worker_settings)
            console.serving([f"{name} on {workers}, up in {clock.now() - began:.1f} s", ""])
            body = {"model": name, "max_tokens": config["max-tokens"], "seed": SEED, **asked}
            decode = proposed_text(config, texts)
            answer = _watched(requests.submit(stream_answer, url, body, clock, api_key, decode), launcher, stop)
        except (StartFailed, DemoFailed) as error:
            console.close()
            launcher.stop()  # first, so that the reason is the last line
            console.trouble(error.message)
            return error.exit_status if isinstance(error, StartFailed) else 1
        except Stopped:
            console.close()
            return 0

        show(answer)
        launcher.stop(quietly=True)
    return 0


def prompt_fields(config: Config, texts: Path) -> dict[str, Any]:
    """The prompt as fields of the request: token ids if the folder `texts` has no tokenizer. Raises ConfigError if
    --prompt was given and the folder has none."""
    prompt = config["prompt"]
    if has_tokenizer(texts):
        return {"prompt": prompt}
    if config.settings["prompt"].origin is not Origin.DEFAULT:
        raise ConfigError(
            f"--prompt: got {brief(prompt)}, but folder {brief(str(texts))} has no tokenizer.json; without --prompt,"
            " token ids are sent",
            param="prompt",
        )
    return dict(TOKEN_IDS)


def _watched(request: "Future[Answer]", launcher: Launcher, stop: StopSignal) -> Answer:
    """Watches the processes until the request is over. Raises DemoFailed or Stopped."""
    while not request.done():
        for ended in launcher.turn(timeout_s=0.02):
            raise DemoFailed(describe_end(ended))
        if stop.is_set():
            raise Stopped
    return request.result()


def show(answer: Answer) -> None:
    """Prints what comes below the answer: its speed, what a draft proposed of it, and the time line."""
    out = RichConsole(highlight=False)
    rate = answer.num_tokens / answer.seconds if answer.seconds > 0 else 0.0
    took = f"{answer.num_tokens} tokens in {answer.seconds * 1000:.0f} ms, {rate:.0f} per second"
    out.print(f"\n\n[dim]{took}, by the client's clock[/dim]\n")
    if answer.num_proposed is not None:
        num_steps = answer.num_tokens - answer.num_proposed + answer.is_cut
        steps = f"{answer.num_tokens} tokens in {num_steps} steps"
        out.print(f"[{PROPOSED}]{answer.num_proposed} tokens[/] [dim]were proposed by the draft: {steps}[/dim]\n")
    if answer.moments:
        out.print(timeline_table(answer.moments, answer.num_tokens, out.width))
        out.print(f"\n[dim]{NOTE}[/dim]")


def proposed_text(config: Config, texts: Path) -> Decode | None:
    """Makes text of token ids, to know which part of the answer a draft has proposed; None without a draft."""
    if config["speculative-algorithm"] is None:
        return None
    if not has_tokenizer(texts):
        return spelled
    tokenizer = Tokenizer.from_file(str(texts / "tokenizer.json"))
    return lambda ids: str(tokenizer.decode(ids))


def stream_answer(
    url: str, body: dict[str, Any], clock: Clock, api_key: str = "", decode: Decode | None = None
) -> Answer:
    """Streams one completion to stdout. With `decode`, tokens that a draft has proposed are in colour: all of a chunk
    but the last, since a chunk has what one launch kept. The prompt's launch, whose token is the first, has no
    proposals. The last chunk waits for the time line, which tells if its run was cut: then its last token was proposed,
    too. Raises DemoFailed if the request is not answered."""
    began = clock.now()
    shows_ids = body.get("return_token_ids", False)
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}, "timeline": True}
    if decode is not None:
        asked["return_token_ids"] = True
    out = RichConsole(highlight=False, soft_wrap=True)
    out.print(Text(str(body["prompt"]), style="dim"), end="")
    moments: tuple[Moment, ...] = ()
    num_tokens = num_proposed = num_shown = 0

    def tell(text: str, ids: Sequence[int], is_cut: bool = False) -> None:
        nonlocal num_proposed, num_shown
        kept = ""
        if decode is not None and ids:
            num_proposed += max(0, len(ids) - (not is_cut) - (not num_shown))
            kept = "" if not num_shown else text if is_cut else proposed_part(text, ids, decode)
        num_shown += len(ids)
        out.print(Text.assemble((printable(kept), PROPOSED), printable(text.removeprefix(kept))), end="")
        sys.stdout.flush()

    last: tuple[str, Sequence[int]] | None = None
    try:
        for chunk in completion_chunks(url, asked, api_key):
            if "error" in chunk:
                raise DemoFailed(str(chunk["error"].get("message", chunk["error"])))
            moments = read_moments(chunk) or moments
            num_tokens = (chunk.get("usage") or {}).get("completion_tokens", num_tokens)
            for choice in chunk.get("choices", ()):
                ids = choice.get("token_ids") or ()  # present if the request asked for token ids
                text = spelled(ids) if shows_ids else choice.get("text", "")
                if decode is not None and choice.get("finish_reason"):
                    last = text, ids
                else:
                    tell(text, ids)
        is_cut = any(moment.name == RUN_CUT for moment in moments)
        if last is not None:
            tell(*last, is_cut)
    except (DemoFailed, OSError, http.client.HTTPException, ValueError) as error:
        print(flush=True)  # the error goes on its own line, below the prompt
        if isinstance(error, DemoFailed):
            raise
        raise DemoFailed(f"the request to {url} failed: {error}") from error

    moments = tuple(moment for moment in moments if moment.name != RUN_CUT)
    return Answer(num_tokens, moments, clock.now() - began, None if decode is None else num_proposed, is_cut)


def proposed_part(text: str, ids: Sequence[int], decode: Decode) -> str:
    """The beginning of a step's text that its tokens but the last make; all of it where the two do not fit. Some
    tokenizers leave out a text's first space."""
    if len(ids) < 2:
        return ""
    proposed = decode(ids[:-1])
    return next((spelling for spelling in (proposed, f" {proposed}") if text.startswith(spelling)), text)


def spelled(ids: Sequence[int]) -> str:
    """Token ids as text."""
    return "".join(f" {token_id}" for token_id in ids)


def printable(text: str) -> str:
    """`text` without control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def completion_chunks(url: str, body: dict[str, Any], api_key: str = "") -> Iterator[dict[str, Any]]:
    """The JSON chunks of a streamed completion, without `[DONE]`. Raises DemoFailed for an HTTP error."""
    where = urlsplit(url)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    with closing(http.client.HTTPConnection(where.hostname or "127.0.0.1", where.port, timeout=_TIMEOUT_S)) as server:
        server.request("POST", "/v1/completions", json.dumps(body).encode(), headers)
        response = server.getresponse()
        if response.status != 200:
            raise DemoFailed(f"HTTP {response.status}: {_error_message(response.read())}")

        for line in response:
            text = line.decode().strip()
            if text.startswith("data: ") and text != "data: [DONE]":
                fields: dict[str, Any] = json.loads(text.removeprefix("data: "))
                yield fields


def _error_message(raw: bytes) -> str:
    text = raw.decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:300]


@dataclass(frozen=True)
class Span:
    """A moment and the start of the time that led to it."""

    moment: Moment
    start_ms: float

    @property
    def ms(self) -> float:
        """The length of that time."""
        return self.moment.at_ms - self.start_ms


def read_moments(chunk: Mapping[str, Any]) -> tuple[Moment, ...]:
    """The moments of a response or chunk in order of time; empty without a time line. A repeated moment counts
    once."""
    stamps = chunk.get("timeline") or ()
    moments = {Moment(str(stamp["name"]), float(stamp["at_ms"]), str(stamp["worker"])): None for stamp in stamps}
    return tuple(sorted(moments, key=lambda moment: moment.at_ms))


def spans(moments: Sequence[Moment]) -> tuple[Span, ...]:
    """Each moment's span, from the previous moment of its process; for a process's first, from any process's."""
    latest: dict[str, float] = {}
    previous, steps = 0.0, []
    for moment in moments:
        steps.append(Span(moment, latest.get(moment.worker, previous)))
        previous = latest[moment.worker] = moment.at_ms
    return tuple(steps)


def bar(start_ms: float, end_ms: float, total_ms: float, width: int) -> str:
    """`width` characters for [0, total_ms). Fills [start_ms, end_ms), at least one character."""
    scale = width / total_ms if total_ms > 0 else 0.0
    first = min(int(start_ms * scale), width - 1)
    last = min(max(int(end_ms * scale + 0.5), first + 1), width)
    return " " * first + "━" * (last - first) + " " * (width - last)


def draw(steps: Sequence[Span], num_tokens: int, width: int) -> list[str]:
    """The last column: bars up to the first decode step, then the decode phase in words."""
    first = next((index for index, span in enumerate(steps) if span.moment.name == FIRST_DECODE), len(steps) - 1)
    total_ms = steps[first].moment.at_ms
    drawn = [bar(span.start_ms, span.moment.at_ms, total_ms, width) for span in steps[: first + 1]]
    for span in steps[first + 1 :]:
        if span.moment.worker == steps[first].moment.worker:
            more = max(0, num_tokens - 2)  # prefill made one token, the first decode step another
            drawn.append(f"… {more} more token{'' if more == 1 else 's'}, {span.ms:.0f} ms")
        else:
            drawn.append("…")
    return drawn


def timeline_table(moments: Sequence[Moment], num_tokens: int, width: int) -> Table:
    """The table, at most `width` and MAX_WIDTH characters wide unless its words need more. Each process has a colour.
    `num_tokens` counts the answer's tokens."""
    steps = spans(moments)
    rows = [(f"{step.moment.at_ms:.1f}", f"{step.ms:.1f}", step.moment.worker, step.moment.name) for step in steps]
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")

    for heading in _HEADINGS:
        table.add_column(heading, no_wrap=True, justify="right" if "ms" in heading else "left")

    words = sum(max(map(len, column)) + _GAP for column in zip(_HEADINGS[:-1], *rows, strict=True))
    drawn = draw(steps, num_tokens, max(_MIN_BAR, min(width, MAX_WIDTH) - words))

    styles: dict[str, str] = {}
    for (at, taken, worker, name), bars in zip(rows, drawn, strict=True):
        style = styles.setdefault(worker, _STYLES[len(styles) % len(_STYLES)])
        table.add_row(at, Text(taken, style="dim"), Text(worker, style=style), Text(name), Text(bars, style=style))
    return table
