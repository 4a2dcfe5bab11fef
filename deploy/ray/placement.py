"""`baton ray plan`: who would run where, and what is missing. Pure: it starts nothing.

Serve spreads replicas over nodes; so does this, node by node with the most free. Serve may choose otherwise where
several nodes have room; what has no room here has none there either, unless a node is freed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from deploy.ray.config_file import Claim, ClusterFile


@dataclass(frozen=True)
class Node:
    """A node of the cluster, with what is free on it now."""

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
    """One replica and the name of its node; an empty name where it has no room."""

    deployment: str
    node: str


def place(claims: Sequence[Claim], nodes: Sequence[Node]) -> tuple[Placement, ...]:
    """A place for each replica, in the order of the claims; those that need GPUs, and then those that need most cores,
    choose first."""
    free = {node.name: node for node in nodes}
    found: list[tuple[int, Placement]] = []
    order = sorted(range(len(claims)), key=lambda index: (-claims[index].gpus, -claims[index].cpus))
    for index in order:
        claim = claims[index]
        for _ in range(claim.replicas):
            fitting = [node for node in free.values() if node.has_room_for(claim)]
            chosen = max(fitting, key=lambda node: (not node.is_head, node.gpus <= claim.gpus, node.cpus), default=None)
            if chosen is not None:
                free[chosen.name] = chosen.less(claim)
            found.append((index, Placement(claim.deployment, chosen.name if chosen else "")))
    return tuple(placement for _, placement in sorted(found, key=lambda each: each[0]))


def missing(claims: Sequence[Claim], nodes: Sequence[Node], places: Sequence[Placement]) -> list[str]:
    """One sentence for each deployment that lacks room."""
    found = []
    for claim in claims:
        homeless = [each for each in places if each.deployment == claim.deployment and not each.node]
        if homeless:
            noun, needs = ("GPU", claim.gpus) if claim.gpus else ("CPU", claim.cpus)
            have = [node.gpus if claim.gpus else node.cpus for node in nodes]
            hosts = sum(each > 0 for each in have)
            found.append(
                f"{claim.deployment} needs {_count(needs * claim.replicas, noun)} ({claim.replicas} x {needs:g}), the"
                f" cluster has {sum(have):g} free on {hosts} host{'s' * (hosts != 1)}: no room for {len(homeless)} of"
                f" {claim.replicas}"
            )
    return found


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}{'s' * (number != 1)}"


def remarks(file: ClusterFile, nodes: Sequence[Node], *, runs: bool) -> list[str]:
    """What to know before it is deployed. `runs`: the application runs already, so its own claims count as taken."""
    found = []
    if runs:
        found.append(f"{file.application} runs already: what it holds counts as taken.")
    if file.has_proxies:
        found.append(
            "Serve will start its own HTTP proxies, which Baton does not use: proxy_location: Disabled prevents it. It"
            " cannot be changed while Serve runs."
        )
    heads = [node.name for node in nodes if node.is_head and node.cpus]
    if heads and len(nodes) > 1:
        found.append(f"The head {heads[0]} takes replicas, too: `ray start --head --num-cpus 0` keeps them off it.")
    found.append(
        "Ray gives its processes niceness 15 unless RAY_worker_niceness=0 was set before `ray start` on their node."
    )
    return found


def plan_lines(file: ClusterFile, nodes: Sequence[Node], *, runs: bool = False) -> tuple[list[str], list[str]]:
    """(lines to print, sentences on what is missing)."""
    places = place(file.claims, nodes)
    width = max(len(node.name) for node in nodes) if nodes else 0
    lines = [
        f"{file.application}: {sum(claim.replicas for claim in file.claims)} processes on {_count(len(nodes), 'node')}"
    ]
    for node in nodes:
        names = [each.deployment for each in places if each.node == node.name]
        counted = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names)) or "nothing"
        head = " (head)" if node.is_head else ""
        lines.append(f"  {node.name:<{width}}  {node.cpus:g} CPUs, {node.gpus:g} GPUs free{head}: {counted}")
    lacks = missing(file.claims, nodes, places)
    return [*lines, *remarks(file, nodes, runs=runs)], lacks
