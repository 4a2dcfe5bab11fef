"""`baton ray plan`: who would run where, also when load has brought all that it may, and what is missing. Pure: it
starts nothing.

Serve spreads replicas over nodes; so does this, node by node with the most free. Serve may choose otherwise where
several nodes have room; what has no room here has none there either, unless a node is freed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from deploy.ray.config_file import Claim, ClusterFile


@dataclass(frozen=True)
class Node:
    """A node of the cluster, with what the application finds free on it, or holds already."""

    name: str
    cpus: float
    gpus: float
    is_head: bool = False

    def has_room_for(self, claim: Claim) -> bool:
        """Whether a replica fits."""
        return self.cpus >= claim.cpus and self.gpus >= claim.gpus

    def less(self, claim: Claim) -> "Node":
        """The node with a replica more on it."""
        return replace(self, cpus=self.cpus - claim.cpus, gpus=self.gpus - claim.gpus)


@dataclass(frozen=True)
class Placement:
    """One replica and the name of its node; an empty name where it has no room. `is_extra`: load brings it."""

    deployment: str
    node: str
    is_extra: bool = False


def place(claims: Sequence[Claim], nodes: Sequence[Node]) -> tuple[Placement, ...]:
    """A place for each replica, in the order of the claims; those that need GPUs, and then those that need most cores,
    choose first. Those that load may bring come behind all others."""
    free = {node.name: node for node in nodes}
    placements: list[tuple[bool, int, Placement]] = []
    order = sorted(range(len(claims)), key=lambda index: (-claims[index].gpus, -claims[index].cpus))
    for is_extra, index in [(is_extra, index) for is_extra in (False, True) for index in order]:
        claim = claims[index]
        for _ in range(claim.extra if is_extra else claim.replicas):
            fitting = [node for node in free.values() if node.has_room_for(claim)]
            chosen = max(fitting, key=lambda node: (not node.is_head, node.gpus <= claim.gpus, node.cpus), default=None)
            if chosen is not None:
                free[chosen.name] = chosen.less(claim)
            placed = Placement(claim.deployment, chosen.name if chosen else "", is_extra)
            placements.append((is_extra, index, placed))
    return tuple(placement for _, _, placement in sorted(placements, key=lambda entry: entry[:2]))


def missing(claims: Sequence[Claim], nodes: Sequence[Node], places: Sequence[Placement]) -> list[str]:
    """One sentence for each deployment that lacks room, at first or when load has brought all that it may."""
    sentences = []
    for claim in claims:
        homeless = [
            placement for placement in places if placement.deployment == claim.deployment and not placement.node
        ]
        if homeless:
            noun, needs = ("GPU", claim.gpus) if claim.gpus else ("CPU", claim.cpus)
            have = [node.gpus if claim.gpus else node.cpus for node in nodes]
            hosts = sum(number > 0 for number in have)
            grown = all(placement.is_extra for placement in homeless)
            count, when = (claim.most, " at max_replicas") if grown else (claim.replicas, "")
            lacking = len(homeless) if grown else sum(not placement.is_extra for placement in homeless)
            sentences.append(
                f"{claim.deployment} needs {_count(needs * count, noun)}{when} ({count} x {needs:g}), the cluster has"
                f" {sum(have):g} free on {hosts} host{'s' * (hosts != 1)}: no room for {lacking} of {count}"
            )
    return sentences


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}{'s' * (number != 1)}"


def remarks(file: ClusterFile, nodes: Sequence[Node], *, runs: bool) -> list[str]:
    """What to know before it is deployed. `runs`: the application runs already, so its own claims count as free."""
    sentences = []
    if runs:
        sentences.append(f"{file.application} runs already: what it holds counts as free.")
    if file.has_proxies:
        sentences.append(
            "Serve will start its own HTTP proxies, which Baton does not use: proxy_location: Disabled prevents it. It"
            " cannot be changed while Serve runs."
        )
    heads = [node.name for node in nodes if node.is_head and node.cpus]
    if heads and len(nodes) > 1:
        sentences.append(f"The head {heads[0]} takes replicas, too: `ray start --head --num-cpus 0` keeps them off it.")
    sentences.append(
        "Ray gives its processes niceness 15 unless RAY_worker_niceness=0 was set before `ray start` on their node."
    )
    return sentences


class PlanLines(NamedTuple):
    """Lines to print, and sentences on what is missing."""

    lines: list[str]
    lacks: list[str]


def plan_lines(file: ClusterFile, nodes: Sequence[Node], *, runs: bool = False) -> PlanLines:
    """The plan of a file on these nodes, in words."""
    places = place(file.claims, nodes)
    width = max(len(node.name) for node in nodes) if nodes else 0
    fewest, most = (
        sum(counts) for counts in zip(*((claim.replicas, claim.most) for claim in file.claims), strict=True)
    )
    grows = f" to {most}, as the load needs," if most > fewest else ""
    lines = [f"{file.application}: {fewest}{grows} processes on {_count(len(nodes), 'node')}"]
    for node in nodes:
        here = [placement for placement in places if placement.node == node.name]
        counted = _counted([placement.deployment for placement in here if not placement.is_extra]) or "nothing"
        extra = _counted([placement.deployment for placement in here if placement.is_extra])
        later = f"; with load also {extra}" if extra else ""
        head = " (head)" if node.is_head else ""
        lines.append(f"  {node.name:<{width}}  {node.cpus:g} CPUs, {node.gpus:g} GPUs free{head}: {counted}{later}")
    lacks = missing(file.claims, nodes, places)
    lines += remarks(file, nodes, runs=runs)
    if any(not placement.node and not placement.is_extra for placement in places):
        lines.append("Serve starts what has room, in any order: if the gateway is left out, nobody is served.")
    return PlanLines(lines, lacks)
