"""A plain load on one server, for comparisons: clients that each send their next request when the last one has ended.

`run_load` warms the server up and measures one round, as `baton bench` does.
"""

from collections.abc import Sequence
from typing import Any, Final

from loadtest.deployment import SERVE, deployed
from loadtest.drive.server import find_model
from loadtest.drive.talk import COMPLETIONS, Asking, TokenHistory
from loadtest.figures.record import Ending
from loadtest.http_exchange import Connections, Server
from loadtest.measure import Load, Measured, measure, prepared
from loadtest.work.arrivals import AtOnce
from loadtest.work.conversations import RandomWork
from loadtest.work.lengths import Lengths
from runtime.clock import Clock, MonotonicClock

ROUND_S = 240.0  # a request without an answer by then has failed
FIELDS: Final[dict[str, Any]] = {"temperature": 0, "ignore_eos": True}
STATISTICS: Final = {"p50": "p50", "p99": "p99", "p99.9": "p999", "max": "most"}  # as tables name them


def plain_load(
    num_requests: int, concurrency: int, prompt_tokens: int, output_tokens: int, vocab: int, seed: int, **more: Any
) -> Load:
    """`concurrency` clients. `vocab` bounds the random prompt ids. A request for each client warms up, of the same
    shape with another prompt. `more`: further fields of Load."""
    prompt, answer = Lengths("fixed", prompt_tokens), Lengths("fixed", output_tokens)
    return Load(
        work=RandomWork(prompt, answer, vocab=vocab),
        arrivals=AtOnce(),
        max_concurrency=concurrency,
        num_conversations=num_requests,
        num_warmups=min(num_requests, concurrency),
        seed=seed,
        stops_when_saturated=False,
        **more,
    )


async def run_load(server: Server, clock: Clock, load: Load) -> Measured:
    """Warms the server up, then measures one round of its first model."""
    model, connections = await find_model(server, clock, None), Connections(server, clock)
    asking = Asking(connections, COMPLETIONS, model.model, TokenHistory, FIELDS, ROUND_S)
    try:
        endpoint = await prepared(server, model, asking, load, clock)
    finally:
        connections.close()
    return await measure(endpoint, load, None, lambda _: None)


async def run_deployed(arguments: Sequence[str], load: Load, command: Sequence[str] = SERVE) -> Measured:
    """One round on a deployment of its own. RuntimeError if a request fails."""
    async with deployed(arguments, command) as url:
        measured = await run_load(Server.at(url, None), MonotonicClock(), load)
    if reason := failures(measured):
        raise RuntimeError(reason)
    return measured


def failures(measured: Measured) -> str:
    """How many requests have failed, long prompts included, and why the first of them has; "" if none has."""
    failed = [record for record in (*measured.records, *measured.beside_records) if record.ending is Ending.FAILED]
    return f"{len(failed)} requests failed: {failed[0].error}" if failed else ""


def cells_of(measured: Measured) -> dict[str, float | None]:
    """The figures of a round for a table, latencies in milliseconds. None where there is no figure: a tail of too few
    values, or an ITL of 0, because most tokens came with the one before."""
    figures, beside = measured.figures, measured.beside
    cells: dict[str, float | None] = {"tokens/s": figures.tokens_per_s, "cached share": figures.cached_share}
    latencies = {"TTFT": figures.ttft_ms, "ITL": figures.itl_ms, "long prompts' TTFT": beside and beside.ttft_ms}
    for name, distribution in latencies.items():
        cells |= {
            f"{name} {words}": getattr(distribution, statistic, None) or None for words, statistic in STATISTICS.items()
        }
    return cells
