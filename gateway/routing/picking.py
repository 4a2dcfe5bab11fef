"""Picks the workers for a request in flight, among those that may get it now. pairing.py has what each costs."""

from collections.abc import Mapping

from gateway.routing.members import Member, Stage, WorkerKey
from gateway.routing.membership import Membership
from gateway.routing.pairing import Load, Pair, Pairer
from gateway.routing.requests import RequestRecord
from protocol.prefixes import packed, prefix_hashes
from runtime.settings import Pairing


class Picker:
    """Picks among the workers of one gateway, by the `loads` that its requests make."""

    def __init__(self, membership: Membership, pairing: Pairing, loads: Mapping[WorkerKey, Load]) -> None:
        self._membership = membership
        self._pairer = Pairer(pairing)
        self._loads = loads

    def pick(self, record: RequestRecord, choices: range) -> Pair | None:
        """Workers for these choices; None if there are none now. Choices that have begun before may go to workers that
        leave, if no others are there."""
        pair = self.pick_ready(record, choices)
        if pair is None and record.num_attempts:
            still_there = [member for member in self._membership.members if member.stage is not Stage.FREE]
            pair = self._pick(record, choices, still_there)
        return pair

    def pick_ready(self, record: RequestRecord, choices: range) -> Pair | None:
        """The same, without workers that leave."""
        return self._pick(record, choices, self._membership.ready)

    def _pick(self, record: RequestRecord, choices: range, among: list[Member] | tuple[Member, ...]) -> Pair | None:
        members = [member for member in among if member.key not in record.full]
        hash_key = self._membership.hash_key
        has_choice = len({member.role for member in members}) < len(members)
        if hash_key and has_choice and not record.prefixes:
            prompt = record.prompt
            record.prefixes = prefix_hashes(hash_key, prompt.cache_salt, packed(prompt.token_ids))
        return self._pairer.pick(members, record.need_of(choices), self._loads, record.avoided)
