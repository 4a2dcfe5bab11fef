"""What is done to the cluster, one fault after the other. Each asserts that it took effect.

A `Hit` says which workers are gone by it, and what mends that which neither Ray nor Baton can, such as a machine
without power.
"""

from collections.abc import Callable
from dataclasses import dataclass

import psutil

from runtime.clock import MonotonicClock
from tests.faults.deployment import pause
from tests.processes import command_line, has_ended
from tests.ray_hosts.cluster import Cluster, until


@dataclass(frozen=True)
class Hit:
    """An injected fault, done `at` a time of the host's clock. Instances of `gone` are never seen again. `restore` runs
    once the loss has been noticed."""

    what: str
    at: float
    gone: frozenset[str] = frozenset()
    takes_gateway: bool = False
    restore: Callable[[], object] = lambda: None


def kill_child(cluster: Cluster, role: str) -> Hit:
    """The process of the busiest worker."""
    row = cluster.busiest(role)
    at = _kill(cluster.holder_of(row["id"])[1])
    return Hit(f"{row['id']}", at, frozenset([row["instance"]]))


def kill_gateway(cluster: Cluster) -> Hit:
    """The gateway's process. Streams that it carried are cut."""
    at = _kill(cluster.holder_of("gateway")[1])
    return Hit("the gateway", at, takes_gateway=True)


def kill_holder(cluster: Cluster, role: str) -> Hit:
    """The holder of the busiest worker of a role. The worker's process ends with it."""
    row = cluster.busiest(role)
    _, child = cluster.holder_of(row["id"])
    holder = child.parent()
    assert holder is not None
    at = _kill(holder)
    until(lambda: has_ended(child))
    return Hit(f"the holder of {row['id']}", at, frozenset([row["instance"]]))


def kill_controller(cluster: Cluster) -> Hit:
    """Serve's controller."""
    running = [process for node in ("head", *cluster.nodes) for process in cluster.machines.processes(node)]
    (controller,) = [process for process in running if "ServeController" in " ".join(command_line(process))]
    at = _kill(controller)
    return Hit("Serve's controller", at, restore=lambda: until(lambda: "baton: RUNNING" in cluster.status()))


def cut_link(cluster: Cluster, seconds: float, *, is_lost: bool) -> Hit:
    """The cable of a machine without the gateway, for so long."""
    node = _node_without_gateway(cluster)
    before = {row["id"]: row["instance"] for row in cluster.workers()}
    there = frozenset(instance for name, instance in before.items() if cluster.holder_of(name)[0] == node)
    assert there, "no worker is on it"
    clock = MonotonicClock()
    cluster.machines.link(node, "down")
    at = clock.now()
    assert cluster.machines.is_unplugged(node)

    def restore() -> None:
        pause(max(0.0, at + seconds - clock.now()))
        cluster.machines.link(node, "up")

    return Hit(f"the link of {node}", at, there if is_lost else frozenset(), restore=restore)


def power_off(cluster: Cluster) -> Hit:
    """A machine without the gateway. Its worker goes to the other machine; the machine comes back empty."""
    node = _node_without_gateway(cluster)
    there = [row for row in cluster.workers() if cluster.holder_of(row["id"])[0] == node]
    assert there, "no worker is on it"
    at = MonotonicClock().now()
    cluster.machines.power_off(node)

    def restore() -> None:
        cluster.machines.power_on(node)
        cluster.start_node(node)

    return Hit(
        f"{node} with {', '.join(row['id'] for row in there)}",
        at,
        frozenset(row["instance"] for row in there),
        False,
        restore,
    )


def kill_head(cluster: Cluster) -> Hit:
    """All of Ray on the head, which is then started again. With a store for the head's state nothing is lost."""
    running = [
        process for process in cluster.machines.processes("head") if command_line(process)[:2] != ["sleep", "infinity"]
    ]
    at = MonotonicClock().now()
    for process in running:
        process.kill()
    until(lambda: all(map(has_ended, running)))
    return Hit("all processes of Ray on the head", at, restore=cluster.start_head)


def lose_head(cluster: Cluster) -> Hit:
    """The same without a store, and for good: Ray on the other machines ends when it has waited long enough, and Baton
    with it."""
    at = kill_head(cluster).at
    return Hit(
        "all processes of Ray on the head", at, takes_gateway=True, restore=lambda: until(lambda: not cluster.ours())
    )


def _node_without_gateway(cluster: Cluster) -> str:
    taken, _ = cluster.holder_of("gateway")
    return next(node for node in cluster.nodes if node != taken)


def _kill(process: psutil.Process) -> float:
    """Returns when it was done."""
    at = MonotonicClock().now()
    process.kill()
    until(lambda: has_ended(process))
    return at


FAULTS: dict[str, Callable[[Cluster], Hit]] = {
    "kill -9 of a decode worker's process": lambda cluster: kill_child(cluster, "decode"),
    "kill -9 of a prefill worker's process": lambda cluster: kill_child(cluster, "prefill"),
    "kill -9 of a decode worker's holder": lambda cluster: kill_holder(cluster, "decode"),
    "kill -9 of Serve's controller": kill_controller,
    "link down for 1 s": lambda cluster: cut_link(cluster, 1.0, is_lost=False),
    "link down for 10 s": lambda cluster: cut_link(cluster, 10.0, is_lost=True),
    "kill -9 of the gateway's process": kill_gateway,
    "a machine loses power": power_off,
    "kill -9 of Ray's head": kill_head,
}
OF_A_MACHINE = ("link down for 1 s", "link down for 10 s", "a machine loses power")
