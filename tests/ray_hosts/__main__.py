"""`make test-cluster`: Baton on a Ray cluster of three machines, which are namespaces of this one, under faults.

Known tokens are streamed by 12 clients all the time. Ends with 1 if a token was wrong, a request was lost, or an error
came where none may.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.soak.work import BAD
from loadtest.verify.judge import Verdict
from tests.faults.deployment import pause
from tests.network.hosts import HERE, can_make_hosts
from tests.ray_hosts.cluster import FILE, Cluster, until
from tests.ray_hosts.faults import FAULTS, OF_A_MACHINE, Hit, kill_holder, lose_head
from tests.ray_hosts.load import Clients, Tally
from tests.ray_hosts.machines import Machines

NODES = ("one", "two")
PAIR = {"prefill": 2, "decode": 2}
CHANGE = "a change of the file"
LOOK_S = 0.02  # between two looks for what the gateway has noticed
SETTLE_S = 5.0  # of load behind each fault
DISASTER = "kill -9 of Ray's head"  # without a store, all ends after Ray's own time
LOSS = "Ray's head is lost, and no store has its state"


@dataclass(frozen=True)
class Row:
    """What came of one fault, or of one change of the file."""

    fault: str
    of: str
    requests: int
    exact: int
    errors: Mapping[str, int]
    cut: int
    wrong: int  # or without an end
    lost: int  # workers that the gateway counted as lost; a gateway that was started anew counts anew
    noticed_s: float | None
    whole_s: float
    told: list[str] = field(default_factory=list)
    may_fail: bool = False

    def is_good(self) -> bool:
        """Whether no token was wrong, none lost, and errors came only where they may."""
        return not self.wrong and (self.may_fail or not (self.errors or self.cut))


class Trial:
    """A cluster under load, to which things are done."""

    def __init__(self, cluster: Cluster, clients: Clients, say: Callable[[str], None]) -> None:
        self.rows: list[Row] = []
        self._cluster, self._clients, self._say = cluster, clients, say
        self._wanted: Mapping[str, int] = PAIR
        self._lost_before = 0

    def hit(self, name: str) -> None:
        """One fault: it is noticed, then everything is whole again."""
        cluster, clients = self._cluster, self._clients
        if name in OF_A_MACHINE:
            self._spread()
        until(lambda: any(row["running"] for row in cluster.workers() if row["role"] == "decode"))
        self._begin()
        clients.gateway_is_hit = "gateway" in name
        hit = FAULTS[name](cluster)
        noticed = None
        if hit.gone:
            until(lambda: (left := self._instances()) and not hit.gone & left, LOOK_S)
            noticed = time.monotonic() - hit.at
        hit.restore()
        self._until_whole(hit)
        whole = time.monotonic() - hit.at
        clients.gateway_is_hit = False
        self._take(name, hit, noticed, whole)

    def change(self, name: str, said: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, int] = PAIR) -> None:
        """Says something else of these deployments. Their workers get other instances if it is a flag. Nobody may
        notice."""
        self._wanted = wanted
        rolled = {name.lower() for name, change in said.items() if "user_config" in change}
        before = frozenset(row["instance"] for row in self._cluster.workers() if row["role"] in rolled)
        begun = time.monotonic()
        self._begin()
        self._cluster.deploy(said)
        self._until_whole(hit := Hit(name, begun, before))
        self._take(CHANGE, hit, None, time.monotonic() - begun)

    def lose_head(self) -> None:
        """Ray's head goes for good, and no store has its state. Everything ends, cleanly."""
        self._begin()
        self._clients.gateway_is_hit = True
        begun = time.monotonic()
        hit = lose_head(self._cluster)
        hit.restore()
        self._take(LOSS, hit, None, time.monotonic() - begun)

    def _begin(self) -> None:
        self._clients.mark()
        self._lost_before = self._cluster.num_lost()

    def _spread(self) -> None:
        """Serve may have put all workers of a role on one machine. It places one of them again, until it has not."""
        while role := self._cluster.crowded():
            hit = kill_holder(self._cluster, role)
            self._until_whole(hit)
            self._say(f"all {role} workers were on one machine: killed {hit.what}, and Serve placed it again")

    def _instances(self) -> set[str]:
        return {row["instance"] for row in self._cluster.workers()}

    def _until_whole(self, hit: Hit) -> None:
        def whole() -> bool:
            if hit.takes_gateway and not self._cluster.workers():
                self._cluster.status()  # it may be elsewhere now
            return self._cluster.counted() == self._wanted and not hit.gone & self._instances()

        until(whole)

    def _take(self, name: str, hit: Hit, noticed: float | None, whole: float) -> None:
        pause(SETTLE_S)
        tally: Tally = self._clients.mark()
        counts = tally.verdicts
        wrong = sum(counts[verdict] for verdict in BAD)
        lost = max(0, self._cluster.num_lost() - self._lost_before)
        row = Row(
            fault=name,
            of=hit.what,
            requests=counts.total(),
            exact=counts[Verdict.EXACT],
            errors=dict(tally.codes),
            cut=counts[Verdict.CUT],
            wrong=wrong,
            lost=lost,
            noticed_s=None if noticed is None else round(noticed, 2),
            whole_s=round(whole, 1),
            told=tally.told,
            may_fail=hit.takes_gateway,
        )
        self.rows.append(row)
        self._say(f"{name}: {'good' if row.is_good() else 'WRONG'}; {json.dumps(asdict(row))}")


@contextmanager
def redis(machines: Machines) -> Iterator[str]:
    """A Redis for the head's state, on a machine that no fault hits. Its address."""
    address = machines.address(HERE)
    words = ["redis-server", "--bind", address, "--port", "6390", "--protected-mode", "no", "--save", ""]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
        try:
            yield f"{address}:6390"
        finally:
            server.kill()


def run(asked: argparse.Namespace, say: Callable[[str], None]) -> list[Row]:
    """Starts everything, does what was asked for, and sees that nothing is left."""

    def is_asked_for(name: str) -> bool:
        return any(part in name for part in asked.only.split(","))

    with ExitStack() as stack:
        machines = stack.enter_context(Machines("head", *NODES))
        store = stack.enter_context(redis(machines)) if asked.redis else ""
        cluster = Cluster(machines, NODES, asked.cpus, store)
        say("three nodes run")

        flags = ("--prefill", "2", "--decode", "2", "--dtype", "float32", "--max-total-tokens", "8192")
        machines.write("head", FILE, cluster.say("head", "baton", "ray", "config", *flags))
        say(cluster.say("head", "baton", "ray", "plan", FILE))
        begun = time.monotonic()
        cluster.deploy()
        until(lambda: cluster.status() and cluster.counted() == PAIR)
        say(cluster.status())
        clients = Clients(lambda: cluster.url)
        try:
            clients.learn()
            say(f"known tokens streamed {time.monotonic() - begun:.0f} s after serve deploy")
            trial = Trial(cluster, clients, say)
            clients.start()
            until(lambda: cluster.far_flows() > 0)
            say(f"{cluster.far_flows()} TCP connections between the two machines that compute")
            for number in range(asked.times):
                for name in [fault for fault in FAULTS if is_asked_for(fault) and (fault != DISASTER or asked.redis)]:
                    say(f"{name}, time {number + 1} of {asked.times}")
                    trial.hit(name)
            if is_asked_for(CHANGE):
                _changes(trial)
            if not asked.redis and is_asked_for(LOSS):
                trial.lose_head()
                return trial.rows
        finally:
            clients.close()
        _shut_down(cluster, say)
        return trial.rows


def _changes(trial: Trial) -> None:
    """From one worker of each role to three, and back to two; then a flag of each."""
    for number in (1, 2, 3, 2):
        said = {name: {"num_replicas": number} for name in ("Prefill", "Decode")}
        trial.change(f"{number} of each role", said, {"prefill": number, "decode": number})
    trial.change("a flag of Prefill", {"Prefill": {"user_config": {"chunked-prefill-size": 64}}})
    trial.change("a flag of Decode", {"Decode": {"user_config": {"max-running-requests": 24}}})


def _shut_down(cluster: Cluster, say: Callable[[str], None]) -> None:
    """After `serve shutdown` nothing of Baton's is left on any machine."""
    cluster.say("head", "serve", "shutdown", "-y")
    until(lambda: not cluster.ours())
    for node in cluster.nodes:
        left = cluster.machines.run(node, "sh", "-c", "ls -d /tmp/baton-* /dev/shm/baton* 2>/dev/null").stdout
        assert not left, f"left on {node}: {left}"
    say("serve shutdown: nothing of Baton's is left")


def shown(rows: list[Row]) -> Table:
    """The table of docs/measurements.md."""
    table = Table("fault", "times", "requests", "exact", "clear errors", "cut", "wrong or lost", "workers lost")
    table.add_column("noticed after s")
    table.add_column("whole after s")
    names = [f"{row.fault}: {row.of}" if row.fault == CHANGE else row.fault for row in rows]
    for name in dict.fromkeys(names):
        these = [row for row, of_row in zip(rows, names, strict=True) if of_row == name]
        counted = [(row.requests, row.exact, sum(row.errors.values()), row.cut, row.wrong, row.lost) for row in these]
        sums = map(sum, zip(*counted, strict=True))
        noticed = [row.noticed_s for row in these if row.noticed_s is not None]
        times = (_range(noticed), _range([row.whole_s for row in these]))
        table.add_row(name, str(len(these)), *map(str, sums), *times)
    return table


def _range(figures: list[float]) -> str:
    return f"{min(figures):.1f} to {max(figures):.1f}" if figures else "-"


def main() -> int:
    """Status 1 if anything is wrong, 2 where machines or a Redis cannot be made."""
    parser = argparse.ArgumentParser(prog="make test-cluster", description=__doc__)
    parser.add_argument("--times", type=int, default=1, help="how often each fault (default 1)")
    parser.add_argument("--only", default="", help="faults whose names contain one of these words, with commas between")
    parser.add_argument("--cpus", type=int, default=6, help="CPUs that each node claims to have (default 6)")
    parser.add_argument("--redis", action="store_true", help="keep the head's state in Redis, and kill the head, too")
    asked = parser.parse_args()
    if not can_make_hosts():
        sys.stderr.write(
            "test-cluster: error: machines of their own need root, and the programs ip, unshare and nsenter\n"
        )
        return 2
    if asked.redis and shutil.which("redis-server") is None:
        sys.stderr.write("test-cluster: error: --redis needs the program redis-server\n")
        return 2
    begun = time.monotonic()
    console = Console(width=200, highlight=False)
    rows = run(asked, lambda line: console.print(f"{time.monotonic() - begun:5.0f} s  {line}", markup=False))
    console.print(shown(rows))
    sys.stdout.write(json.dumps([asdict(row) for row in rows]) + "\n")
    return 0 if all(row.is_good() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
