"""`baton demo`: one prefill and one decode worker, one answer streamed to the terminal, its time line, the end.

The request runs in its own thread, and the main thread watches the processes.
"""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console as RichConsole
from rich.text import Text

from deploy.console import Console
from deploy.devices import read_gpus
from deploy.host import count_cores, count_gpus
from deploy.launcher import Launcher, StartFailed, Stopped
from deploy.layout import GATEWAY, serve_plan
from deploy.model_folder import find_model, has_tokenizer, model_name
from deploy.sentences import TOKEN_IDS, count_roles, describe_end
from deploy.serve import check_lengths, find_texts, start_plan
from deploy.timeline import NOTE, Moment, read_moments, timeline_table
from protocol.errors import BatonError, ConfigError, brief
from runtime.clock import Clock, MonotonicClock
from runtime.keys import read_api_keys
from runtime.layered_config import Config, Origin
from runtime.process_life import StopSignal

_TIMEOUT_S = 120.0


class DemoFailed(BatonError):
    """The request was not answered."""

    code = "demo_failed"


@dataclass(frozen=True)
class Answer:
    """What is told of an answer. `seconds` are by the client's clock."""

    num_tokens: int
    moments: tuple[Moment, ...]
    seconds: float


def demo(config: Config, console: Console) -> int:
    """Runs the demonstration; returns the exit status."""
    model = find_model(config["model"])
    check_lengths(config, model, console)
    asked = prompt_fields(config, find_texts(config, model))
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
            roles = [settings.role.value for settings in plan.worker_settings]
            console.serving([f"{name} on {count_roles(roles)}, up in {clock.now() - began:.1f} s", ""])
            body = {"model": name, "max_tokens": config["max-tokens"], **asked}
            answer = _watched(requests.submit(stream_answer, url, body, clock, api_key), launcher, stop)
        except (StartFailed, DemoFailed) as error:
            console.close()
            launcher.stop()  # first, so that the reason is the last line
            console.trouble(error.message)
            return error.exit_status if isinstance(error, StartFailed) else 1
        except Stopped:
            console.close()
            return 0

        _show(answer)
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


def _show(answer: Answer) -> None:
    out = RichConsole(highlight=False)
    rate = answer.num_tokens / answer.seconds if answer.seconds > 0 else 0.0
    took = f"{answer.num_tokens} tokens in {answer.seconds * 1000:.0f} ms, {rate:.0f} per second"
    out.print(f"\n\n[dim]{took}, by the client's clock[/dim]\n")
    if answer.moments:
        out.print(timeline_table(answer.moments, answer.num_tokens, out.width))
        out.print(f"\n[dim]{NOTE}[/dim]")


def stream_answer(url: str, body: dict[str, Any], clock: Clock, api_key: str = "") -> Answer:
    """Streams one completion to stdout. Raises DemoFailed if it is not answered."""
    began = clock.now()
    RichConsole(highlight=False, soft_wrap=True).print(Text(str(body["prompt"]), style="dim"), end="")
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}, "timeline": True}
    moments: tuple[Moment, ...] = ()
    num_tokens = 0

    try:
        for chunk in completion_chunks(url, asked, api_key):
            if "error" in chunk:
                raise DemoFailed(str(chunk["error"].get("message", chunk["error"])))
            moments = read_moments(chunk) or moments
            num_tokens = (chunk.get("usage") or {}).get("completion_tokens", num_tokens)
            for choice in chunk.get("choices", ()):
                ids = choice.get("token_ids")  # present if the request asked for token ids
                text = choice.get("text", "") if ids is None else "".join(f" {each}" for each in ids)
                print(printable(text), end="", flush=True)
    except (DemoFailed, OSError, http.client.HTTPException, ValueError) as error:
        print(flush=True)  # the error goes on its own line, below the prompt
        if isinstance(error, DemoFailed):
            raise
        raise DemoFailed(f"the request to {url} failed: {error}") from error

    return Answer(num_tokens, moments, clock.now() - began)


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
                found: dict[str, Any] = json.loads(text.removeprefix("data: "))
                yield found


def _error_message(raw: bytes) -> str:
    text = raw.decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:300]
