"""Which workers take a request, by load and by what each has cached: a prefill and a decode worker, or a unified one.

Each worker has a cost, and the cheapest one takes the request. The cost weighs the worker's load against what it has
cached of the prompt. Pure, except for what a Pairer remembers: turns and hot prefixes.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.routing.hot_prefixes import HotPrefixes
from gateway.routing.members import Member, WorkerKey
from protocol.kv_layout import full_pages, pages_for_choices
from protocol.messages_gateway import Role
from runtime.settings import Pairing

PLACE_TOKENS: Final = 64  # what a prompt's place in a launch counts for, however little of it is computed
HIT_WORTH: Final = 0.5  # a decode worker that has the whole prompt counts as half as loaded


@dataclass(frozen=True)
class Need:
    """The size of a request: the prompt's length, the number of choices and the longest output of each."""

    prompt_tokens: int
    num_choices: int
    max_tokens: int  # of each choice
    prefixes: Sequence[bytes] = ()  # the hashes of its prompt's prefixes, if they matter

    def total_pages(self, page_size: int, lookahead: int = 0) -> int:
        """Pages at the end: the prompt's settled pages once, then for each choice the rest of the prompt and its
        outputs. The KV of the last output is never read, so it needs none."""
        num_tokens = self.prompt_tokens + self.max_tokens - 1
        return pages_for_choices(self.prompt_tokens, num_tokens, self.num_choices, page_size, lookahead)

    def fits(self, member: Member) -> bool:
        """Whether `member` could hold this request if it were empty."""
        worker, layout = member.registered, member.registered.layout
        pool = full_pages(worker.max_total_tokens, layout.page_size)
        if member.role is Role.PREFILL:
            return layout.num_pages(self.prompt_tokens) <= pool
        needed = self.total_pages(layout.page_size, layout.lookahead)
        return needed <= pool and self.num_choices <= worker.max_running_requests

    def num_cached(self, member: Member) -> int:
        """Prompt tokens that `member` is thought to have cached. At least one is always computed."""
        return min(member.prefixes.longest(self.prefixes), self.prompt_tokens - 1)


class Load(NamedTuple):
    """Work that this gateway gave to a worker and that has not ended."""

    rows: int = 0
    tokens: int = 0

    @property
    def prompt_work(self) -> int:
        """For a prefill worker, in tokens: those to compute, and the place of each prompt in a launch."""
        return self.tokens + PLACE_TOKENS * self.rows


NO_LOAD: Final = Load()


class Loads(dict[WorkerKey, Load]):
    """The load of each worker, from the requests in flight. A worker without load is absent."""

    def add(self, key: WorkerKey, load: Load, times: int = 1) -> None:
        """Adds work that was given to a worker or, with `times` -1, removes work that has ended."""
        rows, tokens = self.get(key, NO_LOAD)
        self[key] = Load(rows + times * load.rows, tokens + times * load.tokens)
        if self[key] == NO_LOAD:
            del self[key]


def prefill_load(need: Need, member: Member) -> Load:
    """The load of a request on its prefill worker until its first token: what has to be computed."""
    return Load(rows=1, tokens=need.prompt_tokens - need.num_cached(member))


def decode_load(need: Need, member: Member) -> Load:
    """The load of a request on its decode (or unified) worker until it ends: what that worker keeps room for."""
    per_choice = min(need.max_tokens, member.registered.margin)
    return Load(rows=need.num_choices, tokens=need.prompt_tokens + need.num_choices * per_choice)


def one_choice_less(load: Load, need: Need) -> Load:
    """The decode load of a request of `need` when one of its choices goes on elsewhere."""
    return Load(load.rows - 1, load.tokens - (load.tokens - need.prompt_tokens) // load.rows)


def cost(member: Member, need: Need, load: Load) -> float:
    """What it costs to give a request to a worker with this load. Above 1 the request has to wait.

    For a prefill worker that is the work until the request's prompt is computed, and for any other the share of its
    scarcest resource that is taken then, less up to a half for what it has cached. Both are shares of the worker's
    capacity. A worker where the request has to wait gets nothing off.
    """
    worker = member.registered
    if member.role is Role.PREFILL:
        return (load.prompt_work + prefill_load(need, member).prompt_work) / worker.max_total_tokens

    # Contexts grow, so their worker may know more than the gateway has counted.
    pages = member.stats.kv_pages
    num_taken = (pages.total - pages.free - pages.cached) * worker.layout.page_size
    own = decode_load(need, member)
    tokens = (max(load.tokens, num_taken) + own.tokens) / worker.max_total_tokens
    share = max(tokens, (load.rows + own.rows) / worker.max_running_requests)
    return share if share > 1 else share * (1 - HIT_WORTH * need.num_cached(member) / need.prompt_tokens)


@dataclass(frozen=True)
class Pair:
    """The workers of one attempt. `decode` gets the Assign. `prefill` is None if `decode` is a unified worker."""

    decode: Member
    prefill: Member | None


class Pairer:
    """Picks workers by one policy. Remembers the turns, and which prefixes are hot."""

    def __init__(self, policy: Pairing) -> None:
        self._policy = policy
        self._turn = 0
        self._hot = HotPrefixes()

    def pick(
        self,
        members: Sequence[Member],
        need: Need,
        loads: Mapping[WorkerKey, Load],
        avoided: Collection[WorkerKey] = (),
    ) -> Pair | None:
        """The workers for a request, or None if no ready workers could hold it. Takes `avoided` workers only if there
        are no others."""
        fitting = [member for member in members if need.fits(member)]
        prefills, decodes, unified = _by_role([member for member in fitting if member.key not in avoided])
        if not (unified or (prefills and decodes)):
            everybody = _by_role(fitting)
            prefills, decodes, unified = prefills or everybody[0], decodes or everybody[1], everybody[2]
        if not (unified or (prefills and decodes)):
            return None

        turn, self._turn = self._turn, self._turn + 1
        if self._policy == "round_robin":
            return _round_robin(prefills, decodes, unified, turn)
        costs = {
            member.key: cost(member, need, loads.get(member.key, NO_LOAD)) for member in (*prefills, *decodes, *unified)
        }
        held = {member.key: member.prefixes.longest(need.prefixes) for member in prefills}
        discounts = self._hot.discounts(held, need.prefixes)
        for member in prefills:
            costs[member.key] -= discounts.get(member.key, 0.0) / member.registered.max_total_tokens

        pair = _cheapest(prefills, decodes, unified, turn, costs)
        if pair.prefill is not None:
            self._hot.note(pair.prefill.key, prefill_load(need, pair.prefill).tokens, held, need.prefixes)
        return pair


def _by_role(members: Sequence[Member]) -> tuple[list[Member], list[Member], list[Member]]:
    """(prefill, decode, unified workers)."""
    prefills, decodes, unified = (
        [member for member in members if member.role is role] for role in (Role.PREFILL, Role.DECODE, Role.UNIFIED)
    )
    return prefills, decodes, unified


def _round_robin(prefills: list[Member], decodes: list[Member], unified: list[Member], turn: int) -> Pair:
    """Decode and unified workers in turn. Each pass over them shifts the prefill workers by one: with prefill workers
    p0 and p1 and one decode worker, the turns are p0, p1, p0."""
    takers = [*(decodes if prefills else ()), *unified]
    num_passes, index = divmod(turn, len(takers))
    taker = takers[index]
    if taker.role is Role.UNIFIED:
        return Pair(taker, None)
    return Pair(taker, prefills[(index + num_passes) % len(prefills)])


def _cheapest(
    prefills: list[Member],
    decodes: list[Member],
    unified: list[Member],
    turn: int,
    costs: Mapping[WorkerKey, float],
) -> Pair:
    """The cheapest prefill and decode workers, or the cheapest unified worker if that costs less than both. Equals take
    turns."""

    def first(workers: list[Member]) -> Member:
        start = turn % len(workers)
        return min((*workers[start:], *workers[:start]), key=lambda member: costs[member.key])

    options = [Pair(first(decodes), first(prefills))] if prefills and decodes else []
    if unified:
        options.insert(0 if turn % 2 else 1, Pair(first(unified), None))  # among equals the first is taken
    return min(
        options, key=lambda pair: max(costs[member.key] for member in (pair.decode, pair.prefill or pair.decode))
    )
