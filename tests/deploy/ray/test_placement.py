import pytest

from deploy.ray.config_file import Claim, read_cluster
from deploy.ray.placement import Node, missing, place, plan_lines
from tests.deploy.ray.files import FILE, KNOWN, with_change

GATEWAY = Claim("Gateway", 1, 1, 0)


def where(claims: list[Claim], nodes: list[Node]) -> dict[str, list[str]]:
    nodes_of: dict[str, list[str]] = {}
    for placed in place(claims, nodes):
        nodes_of.setdefault(placed.deployment, []).append(placed.node)
    return nodes_of


def test_replicas_are_spread_and_the_head_comes_last() -> None:
    nodes = [Node("head", 8, 0, is_head=True), Node("a", 4, 0), Node("b", 4, 0)]
    assert where([GATEWAY, Claim("Prefill", 2, 2, 0)], nodes) == {"Gateway": ["a"], "Prefill": ["a", "b"]}
    assert where([Claim("Prefill", 5, 2, 0)], nodes) == {"Prefill": ["a", "b", "a", "b", "head"]}


def test_a_group_of_ranks_needs_its_gpus_on_one_node() -> None:
    nodes = [Node("a", 64, 8), Node("b", 64, 8)]
    claims = [GATEWAY, Claim("Prefill", 8, 1, 1), Claim("Decode", 1, 8, 8)]
    shown = where(claims, nodes)
    assert len(set(shown["Prefill"])) == 1 and shown["Decode"] != shown["Prefill"][:1]
    halves = [Node("a", 64, 4), Node("b", 64, 4)]
    assert where([Claim("Decode", 1, 8, 8)], halves) == {"Decode": [""]}


@pytest.mark.parametrize(
    ("claim", "nodes", "said"),
    [
        (Claim("Decode", 1, 1, 8), [Node("a", 9, 4), Node("b", 9, 0)],
            "Decode needs 8 GPUs (1 x 8), the cluster has 4 free on 1 host: no room for 1 of 1"),
        (Claim("Prefill", 3, 2, 0), [Node("a", 4, 0), Node("b", 1, 0)],
            "Prefill needs 6 CPUs (3 x 2), the cluster has 5 free on 2 hosts: no room for 1 of 3"),
        (Claim("Prefill", 1, 1, 0), [],
            "Prefill needs 1 CPU (1 x 1), the cluster has 0 free on 0 hosts: no room for 1 of 1"),
    ],
)  # fmt: skip
def test_what_is_missing_is_counted(claim: Claim, nodes: list[Node], said: str) -> None:
    assert missing([claim], nodes, place([claim], nodes)) == [said]


def test_what_load_may_bring_has_room_behind_all_that_starts_at_once() -> None:
    claims = [GATEWAY, Claim("Prefill", 1, 4, 0, extra=2), Claim("Decode", 2, 1, 0, extra=1)]
    placed = place(claims, [Node("a", 12, 0)])
    assert [(claim.deployment, claim.node, claim.is_extra) for claim in placed] == [
        ("Gateway", "a", False), ("Prefill", "a", False), ("Decode", "a", False), ("Decode", "a", False),
        ("Prefill", "a", True), ("Prefill", "", True), ("Decode", "a", True),
    ]  # fmt: skip
    assert missing(claims, [Node("a", 12, 0)], placed) == [
        "Prefill needs 12 CPUs at max_replicas (3 x 4), the cluster has 12 free on 1 host: no room for 1 of 3"
    ]
    few = [Node("a", 3, 0)]
    assert missing(claims, few, place(claims, few))[0] == (
        "Prefill needs 4 CPUs (1 x 4), the cluster has 3 free on 1 host: no room for 1 of 1"
    ), "what lacks room at first is said, not what load would bring"


def test_a_plan_names_what_load_may_bring() -> None:
    scaling = {"max_replicas": 3, "policy": {"policy_function": "deploy.ray.scaling:ByLoad"}}
    changed = with_change("applications.0.deployments.2", {"name": "Decode", "autoscaling_config": scaling})
    lines, lacks = plan_lines(read_cluster(changed, KNOWN), [Node("a", 6, 0), Node("b", 2, 0)])
    assert lines[:3] == [
        "baton: 4 to 6, as the load needs, processes on 2 nodes",
        "  a  6 CPUs, 0 GPUs free: 1 Gateway, 2 Prefill; with load also 1 Decode",
        "  b  2 CPUs, 0 GPUs free: 1 Decode; with load also 1 Decode",
    ]
    assert lacks == []


def test_a_plan_names_each_node() -> None:
    file = read_cluster(FILE, KNOWN)
    lines, lacks = plan_lines(file, [Node("10.0.0.1", 0, 0, is_head=True), Node("10.0.0.2", 16, 0)])
    assert lines[:3] == [
        "baton: 5 processes on 2 nodes",
        "  10.0.0.1  0 CPUs, 0 GPUs free (head): nothing",
        "  10.0.0.2  16 CPUs, 0 GPUs free: 1 Gateway, 2 Prefill, 2 Decode",
    ]
    assert lacks == []
    assert not any("takes replicas" in line or "proxies" in line for line in lines)


def test_a_plan_says_what_to_know() -> None:
    file = read_cluster(with_change("proxy_location", "EveryNode"), KNOWN)
    lines, lacks = plan_lines(file, [Node("a", 1, 0, is_head=True), Node("b", 1, 0)], runs=True)
    said = " ".join(lines)
    for words in (
        "runs already",
        "proxy_location: Disabled",
        "The head a takes replicas",
        "RAY_worker_niceness=0",
        "if the gateway",
    ):
        assert words in said
    assert len(lacks) == 2
