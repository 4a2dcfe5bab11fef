"""What a run must know of the endpoint before it starts, and what the endpoint counts of itself.

Each way in which an endpoint is of no use is one sentence: nobody there, another model, no stream, a refusal.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from loadtest.drive.events import Heard
from loadtest.drive.talk import Asking, Talk, TokenHistory
from loadtest.figures.record import Counting, Record
from loadtest.http_exchange import Broken, Server, get, refusal
from loadtest.work.conversations import Conversation, Turn
from protocol.errors import ConfigError, brief_name
from runtime.clock import Clock

PROBE_TOKENS = 3
ASKS_FOR_TOKENS: Mapping[str, Any] = {
    "return_token_ids": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
PLAIN: Mapping[str, Any] = {"stream_options": {"include_usage": True}}


@dataclass(frozen=True)
class Found:
    """A model of an endpoint. `context`: the longest prompt with its answer, if the endpoint tells."""

    model: str
    context: int | None


async def find_model(server: Server, clock: Clock, wanted: str | None) -> Found:
    """The model that `wanted` names, or the first one. ConfigError if nobody answers or there is no such model."""
    try:
        status, body = await get(server, clock, "/v1/models")
    except Broken as error:
        raise ConfigError(f"nothing answers at {server}: {error}", param="base-url") from error
    if status == 404 and wanted:
        return Found(wanted, None)
    if status != 200:
        raise ConfigError(f"GET {server}/v1/models: {refusal(status, body)}", param="base-url")

    try:
        models = {str(model["id"]): model for model in orjson.loads(body)["data"]}
        name = wanted or next(iter(models))
    except (ValueError, LookupError, TypeError, StopIteration) as error:
        raise ConfigError(f"GET {server}/v1/models: got {body[:200]!r}, expected a list of models") from error
    if name not in models:
        names = ", ".join(brief_name(model_id) for model_id in models)
        raise ConfigError(f"--model: got {brief_name(name)}, expected a model of {server}: {names}", param="model")
    context = models[name].get("max_model_len")
    return Found(name, context if isinstance(context, int) else None)


class _One:
    """Listens to one request."""

    def __init__(self) -> None:
        self.record: Record | None = None

    def began(self, heard: Heard) -> None:
        """Nothing to do."""

    def ended(self, record: Record, heard: Heard) -> None:
        """Keeps the record."""
        self.record = record


@dataclass(frozen=True)
class Probed:
    """How an endpoint can be asked. `is_plain`: it refuses the fields that count tokens."""

    asking: Asking
    counting: Counting
    is_plain: bool


async def probe(asking: Asking, clock: Clock, said: tuple[int, ...] | str) -> Probed:
    """Sends one short request. ConfigError says why its answer is of no use."""
    record, is_plain = await _one(with_fields(asking, ASKS_FOR_TOKENS), clock, said), False
    if record.kind in ("HTTP 400", "HTTP 422"):
        plain = await _one(with_fields(asking, PLAIN), clock, said)
        if plain.is_done:
            record, is_plain = plain, True
    if not record.is_done:
        raise ConfigError(f"a first request to {asking.path} failed: {record.error}", param="base-url")
    return Probed(with_fields(asking, PLAIN if is_plain else ASKS_FOR_TOKENS), record.counting, is_plain)


def check_turns(probed: Probed, has_later_turns: bool) -> None:
    """ConfigError if a later turn of token ids could not have the answers before it."""
    if has_later_turns and probed.asking.history is TokenHistory and probed.counting is not Counting.IDS:
        raise ConfigError(
            "--num-turns: the endpoint returns no token ids, so later turns cannot have the answers before them;"
            " expected --backend openai-chat for several turns",
            param="num-turns",
        )


def with_fields(asking: Asking, fields: Mapping[str, Any]) -> Asking:
    """`fields` of the user win."""
    return replace(asking, fields={**fields, **asking.fields})


async def _one(asking: Asking, clock: Clock, said: tuple[int, ...] | str) -> Record:
    one = _One()
    talk = Talk(asking, clock, clock.now(), 0, one)
    await talk.ask(Conversation((Turn(said, PROBE_TOKENS),)), 0, 0.0)
    assert one.record is not None
    return one.record


# ---- what it counts of itself ----


async def metrics(server: Server, clock: Clock) -> dict[str, float] | None:
    """All samples of /metrics, by name and labels. None if the endpoint has no such page."""
    try:
        status, page = await get(server, clock, "/metrics")
    except Broken:
        return None
    return parse_metrics(page.decode(errors="replace")) if status == 200 else None


def parse_metrics(page: str) -> dict[str, float] | None:
    """The samples of a page in Prometheus' text format. None if it is none."""
    samples = {}
    for line in page.splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            try:
                samples[name.strip()] = float(value)
            except ValueError:
                return None
    return samples or None


def counted_between(before: Mapping[str, float] | None, after: Mapping[str, float] | None) -> dict[str, float]:
    """By how much each counter grew, if at all. Samples that are no counters are left out."""
    if before is None or after is None:
        return {}
    counters = ("_total", "_count", "_sum")
    grown = {name: value - before.get(name, 0.0) for name, value in after.items() if _metric(name).endswith(counters)}
    return {name: value for name, value in grown.items() if value > 0}


def _metric(name: str) -> str:
    return name.partition("{")[0]
