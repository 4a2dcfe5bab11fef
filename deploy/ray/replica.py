"""What every replica does, whatever its role: finds its place in the cluster, holds its processes, leaves.

An error is one sentence that names the node: Serve shows it in `serve status`.
"""

import asyncio
import os
import platform
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray._private.authentication.authentication_utils import is_token_auth_enabled  # there is no public way to ask

from deploy.model_folder import find_model
from deploy.ray.arguments import Arguments
from deploy.ray.holder import RUNNING, Errand, Holder, Overtaken, Ready
from deploy.ray.meeting import Facts
from deploy.ray.node import NodeKeys, fingerprint
from deploy.ray.share import Share
from protocol.errors import BatonError, ConfigError
from runtime.address import is_loopback
from runtime.installation import baton_version, check_imports


@dataclass(frozen=True)
class Place:
    """Where a replica is: its node's address, and its own name."""

    node: str
    name: str
    share: Share


def find_place() -> Place:
    """The place of this replica. Hides GPUs that it has not claimed. ConfigError if strangers reach this cluster,
    or if it has claimed nothing, or a part of a GPU."""
    context = ray.get_runtime_context()
    node, claimed = str(ray.util.get_node_ip_address()), context.get_assigned_resources()
    check_token(node)
    whole: Mapping[str, float] = next(raw["Resources"] for raw in ray.nodes() if raw["NodeID"] == context.get_node_id())
    share = Share(claimed.get("CPU", 0.0), claimed.get("GPU", 0.0), whole.get("CPU", 0.0), whole.get("GPU", 0.0))
    replica = serve.get_replica_context()
    share.check(replica.deployment)
    if not share.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves every GPU visible
    return Place(node, f"{replica.deployment.lower()}-{replica.replica_tag}", share)


def check_token(node: str) -> None:
    """Raises ConfigError for a cluster that other machines reach without Ray's token."""
    if not is_loopback(node) and not is_token_auth_enabled():
        raise ConfigError(
            "RAY_AUTH_MODE: got no token authentication, and this address can be reached from other machines, where"
            " anybody could run code as this user; expected RAY_AUTH_MODE=token before `ray start` on every node"
        )


def facts_of(arguments: Arguments) -> Facts:
    """Versions and model of this node, which must equal the gateway's. Downloads a hub's model. ConfigError: none."""
    model = find_model(arguments.model, arguments.revision)
    return Facts(
        baton=baton_version(),
        python=platform.python_version(),
        ray=str(ray.__version__),
        model=arguments.model or "the bundled model",
        fingerprint=fingerprint(Path(model)),
    )


@contextmanager
def one_sentence(node: str) -> Iterator[None]:
    """Turns our errors into one that Ray can carry."""
    try:
        yield
    except BatonError as error:
        raise RuntimeError(f"node {node}: {error.message.replace('--model:', 'args.model:', 1)}") from None


class Replica:
    """Base of the deployments. Serve calls `reconfigure` with each `user_config` and `__del__` once, at the end."""

    def __init__(self, arguments: str) -> None:
        self.arguments = Arguments.from_json(arguments)
        with one_sentence(str(ray.util.get_node_ip_address())):
            check_imports()
            self.place = find_place()
            self.facts = facts_of(self.arguments)
        self.keys = NodeKeys()
        self.holder = Holder()
        self.holder.console.note(f"{self.place.name} on {self.place.node}: {self.place.share}")
        if os.nice(0) > 0:
            self.holder.console.note(
                f"Ray has given this process niceness {os.nice(0)}, which Baton inherits: say RAY_worker_niceness=0"
                " before `ray start`"
            )
        self._latest: Future[Ready] | None = None
        self._runs_with: dict[str, Any] | None = None  # the flags of the processes that were started last
        self.refused = ""  # what is wrong with flags that came later

    async def reconfigure(self, user_config: Any) -> None:
        """Starts the processes with the flags of `user_config`, and returns when they serve. A first start that fails
        leaves nothing behind. Wrong flags are refused, and processes that run stay as they are: Serve would end this
        replica for an error, and start none that serves in its place.

        Serve also calls this with the same flags, when it numbers the replicas of a deployment anew because one was
        lost. Processes that run stay then.
        """
        is_first, self.refused = self._latest is None, ""
        with one_sentence(self.place.node):
            try:
                written = written_flags(user_config)
                if written != self._runs_with or self.holder.state not in RUNNING:
                    await self.start_with(written)
                    self._runs_with = written
            except BaseException as error:
                if isinstance(error, ConfigError) and self.holder.state in RUNNING:
                    self.refused = error.message
                    self.holder.console.trouble(f"{self.place.name} keeps the flags that it has: {error.message}")
                    return
                if is_first:  # Serve ends this replica without a word
                    await self.end()
                raise

    async def start_with(self, written: dict[str, Any]) -> None:
        """Starts the processes with these flags, or starts them again."""
        raise NotImplementedError

    async def run(self, errand: Errand) -> Ready:
        """Starts an errand, and waits until it serves, or that which has overtaken it."""
        self._latest = self.holder.start(errand)
        while True:
            waited_for = self._latest
            try:
                return await asyncio.shield(asyncio.wrap_future(waited_for))
            except Overtaken:
                if waited_for is self._latest:  # this replica leaves
                    raise

    async def end(self) -> None:
        """Ends the processes and removes the keys."""
        await asyncio.shield(asyncio.wrap_future(self.holder.leave()))
        self.keys.close()

    def check_health(self) -> None:
        """Serve replaces the replica if this raises three times."""
        with one_sentence(self.place.node):
            self.holder.check()


def as_endpoint(host: str, port: int) -> str:
    """`tcp://10.0.0.5:7000`, with brackets around an IPv6 address."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def reachable(http: str, node: str) -> str:
    """`http`, with the node's address in place of a wildcard."""
    host = f"[{node}]" if ":" in node else node
    return http.replace("://0.0.0.0:", f"://{host}:").replace("://[::]:", f"://{host}:")


def written_flags(user_config: Any) -> dict[str, Any]:
    """`user_config` as a dictionary of flags. ConfigError if it is none."""
    if not isinstance(user_config, dict):
        raise ConfigError(f"user_config: got {str(user_config)[:80]!r}, expected flags such as page-size: 16")
    return user_config
