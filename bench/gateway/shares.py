"""`python -m bench.gateway.shares`: which part of the requests each worker gets, on a virtual clock.

The gateway's own dispatch and pairing serve workers that are modelled (tests/gateway/modelled_fleet.py), so the figures
are the same on every machine. The loads: one hot prefix, many prefixes, chats, and a worker that is killed.
"""

from collections.abc import Callable, Iterator
from functools import partial

from runtime.settings import Pairing
from tests.gateway.arrivals import (
    cached_share,
    chats,
    hot_prefix,
    many_prefixes,
    p95,
    prefill_share,
    restarted,
    share,
)
from tests.gateway.modelled_fleet import Asked

HEAD = ("load", "pairing", "prefill share", "decode share", "cached", "of the most", "queue p95", "computed p95")
RULES: tuple[Pairing, ...] = ("prefix_aware", "least_loaded")


def _rows(name: str, load: Callable[..., list[Asked]]) -> Iterator[tuple[str, ...]]:
    most = cached_share(load(num_prefill=1))
    for pairing in RULES:
        asked = load(pairing=pairing)
        cached, decode = cached_share(asked), share(asked, lambda each: each.decode)
        waits = ([each.queue_s for each in asked], [each.computed_s - each.asked_s for each in asked])
        found = f"{prefill_share(asked):.2f}", f"{decode:.2f}", f"{cached:.3f}", f"{cached / most:.2f}"
        yield name, pairing, *found, *(f"{1e3 * p95(times):.0f} ms" for times in waits)


def main() -> None:
    """Prints the table, and what a restarted worker takes."""
    sizes = [(num_prefix, at_a_time) for num_prefix in (512, 1800) for at_a_time in (4, 32)]
    loads = [(f"prefix of {num}, {at} at a time", partial(hot_prefix, num, at)) for num, at in sizes]
    loads += [(f"{groups} prefixes of 1800, 16 at a time", partial(many_prefixes, 1, groups)) for groups in (8, 64)]
    loads += [
        (f"chats, system prompt of {system}, {at} at a time", partial(chats, 1, at, system))
        for system in (0, 512)
        for at in (4, 32)
    ]
    rows = [HEAD, ("---",) * len(HEAD), *(row for name, load in loads for row in _rows(name, load))]
    for row in rows:
        print(f"| {' | '.join(row)} |")
    for num, at in sizes:
        parts = ", ".join(f"{pairing} {restarted(num, at, pairing):.2f}" for pairing in RULES)
        print(f"a restarted worker's part of 10 s, prefix of {num}, {at} at a time: {parts}")


if __name__ == "__main__":
    main()
