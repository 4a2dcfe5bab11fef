"""Picks the workers of a request: one prefill and one decode worker, or one unified worker.

Pure except for the turn counter. Pairs and unified workers are compared by the share of their capacity in use.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gateway.membership import Member, WorkerKey
from protocol.kv_layout import full_pages, pages_for, pages_for_choices
from protocol.messages_gateway import Role
from runtime.settings import Pairing


@dataclass(frozen=True)
class Need:
    """What a request needs: its prompt's length, its choices and their longest outputs."""

    prompt_tokens: int
    num_choices: int
    max_tokens: int  # of each choice

    def total_pages(self, page_size: int) -> int:
        """Pages at the end: the full prompt pages once, then for each choice the rest of the prompt and its outputs.
        The KV of the last output is never read, so it needs none."""
        num_tokens = self.prompt_tokens + self.max_tokens - 1
        return pages_for_choices(self.prompt_tokens, num_tokens, self.num_choices, page_size)

    def fits(self, member: Member) -> bool:
        """Whether `member` could hold this request if it were empty."""
        page_size = member.registered.layout.page_size
        pool = full_pages(member.registered.max_total_tokens, page_size)
        if member.role is Role.PREFILL:
            return pages_for(self.prompt_tokens, page_size) <= pool
        return self.total_pages(page_size) <= pool and self.num_choices <= member.registered.max_running_requests


@dataclass(frozen=True)
class Load:
    """Work that this gateway gave to a worker and that has not ended."""

    rows: int = 0
    tokens: int = 0

    def plus(self, other: "Load") -> "Load":
        """The sum of both."""
        return Load(self.rows + other.rows, self.tokens + other.tokens)

    def minus(self, other: "Load") -> "Load":
        """This load without `other`."""
        return Load(self.rows - other.rows, self.tokens - other.tokens)


@dataclass(frozen=True)
class Pair:
    """The workers of one attempt. `decode` gets the Assign. `prefill` is None if `decode` is a unified worker."""

    decode: Member
    prefill: Member | None

    @property
    def workers(self) -> tuple[Member, ...]:
        """One or two."""
        return (self.decode,) if self.prefill is None else (self.prefill, self.decode)


class Loads(dict[WorkerKey, Load]):
    """The load of each worker, from the requests in flight. A worker without load is absent."""

    def add(self, key: WorkerKey, load: Load) -> None:
        """Adds work that was given to a worker."""
        self[key] = self.get(key, Load()).plus(load)

    def remove(self, key: WorkerKey, load: Load) -> None:
        """Removes work that has ended."""
        self[key] = self[key].minus(load)
        if self[key] == Load():
            del self[key]


class Pairer:
    """Picks workers by one policy and counts the turns."""

    def __init__(self, policy: Pairing) -> None:
        self._policy = policy
        self._turn = 0

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
        trusted = by_role([member for member in fitting if member.key not in avoided])

        if not can_serve(*trusted):
            everybody = by_role(fitting)
            trusted = (trusted[0] or everybody[0], trusted[1] or everybody[1], everybody[2])

        prefills, decodes, unified = trusted
        if not can_serve(prefills, decodes, unified):
            return None

        turn, self._turn = self._turn, self._turn + 1
        if self._policy == "round_robin":
            return round_robin(prefills, decodes, unified, turn)
        return least_loaded(prefills, decodes, unified, turn, loads)


def by_role(members: Sequence[Member]) -> tuple[list[Member], list[Member], list[Member]]:
    """(prefill, decode, unified workers)."""
    prefills = [member for member in members if member.role is Role.PREFILL]
    decodes = [member for member in members if member.role is Role.DECODE]
    return prefills, decodes, [member for member in members if member.role is Role.UNIFIED]


def can_serve(prefills: Sequence[Member], decodes: Sequence[Member], unified: Sequence[Member]) -> bool:
    """Whether there is a pair or a unified worker."""
    return bool(unified) or bool(prefills and decodes)


def round_robin(prefills: Sequence[Member], decodes: Sequence[Member], unified: Sequence[Member], turn: int) -> Pair:
    """Decode and unified workers in turn. Each pass over them shifts the prefill workers by one."""
    takers = [*(decodes if prefills else ()), *unified]
    taker = takers[turn % len(takers)]
    if taker.role is Role.UNIFIED:
        return Pair(taker, None)
    return Pair(taker, prefills[(turn + turn // len(takers)) % len(prefills)])


def least_loaded(
    prefills: Sequence[Member],
    decodes: Sequence[Member],
    unified: Sequence[Member],
    turn: int,
    loads: Mapping[WorkerKey, Load],
) -> Pair:
    """The least loaded prefill and decode workers, or the least loaded unified worker if that has less load than
    both. Equals take turns."""

    def share(member: Member) -> float:
        return weight(member, loads.get(member.key, Load()))

    def lightest(workers: Sequence[Member]) -> Member:
        start = turn % len(workers)
        return min((*workers[start:], *workers[:start]), key=share)

    options = [Pair(lightest(decodes), lightest(prefills))] if prefills and decodes else []
    if unified:
        options.insert(0 if turn % 2 else 1, Pair(lightest(unified), None))  # among equals the first is taken
    return min(options, key=lambda pair: max(share(member) for member in pair.workers))


def weight(member: Member, load: Load) -> float:
    """The share of a worker's scarcest resource that is taken. Above 1 there is a queue."""
    registered = member.registered
    return max(load.tokens / registered.max_total_tokens, load.rows / registered.max_running_requests)


def prefill_load(need: Need) -> Load:
    """The load of a request on its prefill worker until its first token."""
    return Load(rows=1, tokens=need.prompt_tokens)


def decode_load(need: Need) -> Load:
    """The load of a request on its decode (or unified) worker until it ends."""
    return Load(rows=need.num_choices, tokens=need.prompt_tokens + need.num_choices * need.max_tokens)
