"""What `baton ray plan` and `baton ray status` ask of a running cluster. They start nothing on it.

Names of `ray._private` are those for which Ray has no public way.
"""

import json
import logging
import os
import socket
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
import ray
from ray import serve
from ray._private import auto_init_hook
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray._private.grpc_utils import init_grpc_channel
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray._private.state import available_resources_per_node, state
from ray.core.generated import gcs_pb2, gcs_service_pb2, gcs_service_pb2_grpc
from ray.exceptions import AuthenticationError, RayError
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.exceptions import RayServeException
from ray.serve.schema import DeploymentSchema, ServeApplicationSchema, ServeDeploySchema

from deploy.ray.arguments import GATEWAY
from deploy.ray.config_file import Known
from deploy.ray.placement import Node
from deploy.ray.status_table import Seen
from protocol.errors import ConfigError, brief

KNOWN: Final = Known(
    frozenset(ServeDeploySchema.model_fields),
    frozenset(ServeApplicationSchema.model_fields),
    frozenset(DeploymentSchema.model_fields),
    frozenset(AutoscalingConfig.model_fields),
    frozenset(AutoscalingPolicy.model_fields),
)
VERSION: Final = str(ray.__version__)
ANSWER_S: Final = 10.0
KINDS: Final = ("CPU", "GPU")


@contextmanager
def connected() -> Iterator[None]:
    """While it is open, this process is a driver of the cluster: that of RAY_ADDRESS, else the one on this host.
    ConfigError if there is none, or if it wants another token."""
    address = os.environ.get("RAY_ADDRESS") or "auto"
    if "://" in address:
        raise ConfigError(
            f"RAY_ADDRESS: got {brief(address)}, the address of a dashboard or of a Ray client; expected HOST:6379 of"
            " the head, or none on its hosts"
        )
    try:
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        check_answers(canonicalize_bootstrap_address_or_die(address))
        logging.getLogger("ray.serve").setLevel(logging.ERROR)  # it tells of each handle that is made
        auto_init_hook.enable_auto_connect = False  # else a thread of Serve's could connect anew behind `shutdown`
        ray.init(address=address, namespace="baton", log_to_driver=False, logging_level=logging.ERROR)
    except ConfigError:  # which is a ValueError, too
        raise
    except AuthenticationError as error:
        raise wrong_token(address) from error
    except (ConnectionError, RayError, RuntimeError, ValueError) as error:
        raise nobody_at(address, str(error)) from error
    try:
        yield
    finally:
        ray.shutdown()


def check_answers(address: str) -> None:
    """One question to the head, because `ray.init` asks for a minute before it gives up. ConfigError if there is no
    head, if it wants another token, or if this host is none of its nodes."""
    channel = init_grpc_channel(address)
    try:
        head = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        nodes = head.GetAllNodeInfo(gcs_service_pb2.GetAllNodeInfoRequest(), timeout=ANSWER_S).node_info_list
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            raise wrong_token(address) from error
        raise nobody_at(address, str(error.details())) from error
    finally:
        channel.close()
    alive = [node.node_manager_address for node in nodes if node.state == gcs_pb2.GcsNodeInfo.ALIVE]
    if not any(map(is_here, alive)):
        raise ConfigError(
            f"RAY_ADDRESS: this host is no node of the cluster at {brief(address)}; expected `baton ray` on one of its"
            f" {len(alive)} nodes"
        )


def is_here(address: str) -> bool:
    """Whether it is an address of this host."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(where)
    except OSError:
        return False
    return True


def wrong_token(address: str) -> ConfigError:
    """For a cluster that refuses this process."""
    return ConfigError(
        f"RAY_AUTH_TOKEN: the cluster at {brief(address)} got a wrong token or none; expected that of the head, in"
        " RAY_AUTH_TOKEN or ~/.ray/auth_token, with RAY_AUTH_MODE=token"
    )


def nobody_at(address: str, reason: str) -> ConfigError:
    """For an address where no cluster answers."""
    shown = " ".join(reason.split())[:200].rstrip(".")
    if address == "auto":
        return ConfigError(f"ray: no cluster on this host ({shown}); expected `ray start`, or RAY_ADDRESS=HOST:6379")
    return ConfigError(f"RAY_ADDRESS: no Ray at {brief(address)} ({shown}); expected a cluster: `ray start`")


def find_nodes(application: str) -> list[Node]:
    """The live nodes, and what is on each of them free, or held by that application, which gives it back when it is
    deployed again."""
    free, held = available_resources_per_node(), held_by(application, live_actors())
    nodes = []
    for raw in ray.nodes():
        if raw["Alive"]:
            cpus, gpus = (free.get(raw["NodeID"], {}).get(kind, 0.0) for kind in KINDS)
            own_cpus, own_gpus = (held[raw["NodeID"]][kind] for kind in KINDS)
            is_head = "node:__internal_head__" in raw["Resources"]
            nodes.append(Node(raw["NodeManagerAddress"], cpus + own_cpus, gpus + own_gpus, is_head))
    return sorted(nodes, key=lambda node: (not node.is_head, node.name))


def live_actors() -> list[gcs_pb2.ActorTableData]:
    """What the head knows of each actor that runs."""
    table = state._connect_and_get_accessor().get_actor_table(None, "ALIVE")
    return [gcs_pb2.ActorTableData.FromString(raw) for raw in table]


def held_by(application: str, actors: Iterable[gcs_pb2.ActorTableData]) -> defaultdict[str, Counter[str]]:
    """By the hex id of a node, the resources that Serve's replicas of the application claim there."""
    held: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for actor in actors:
        if actor.name.startswith(f"SERVE_REPLICA::{application}#"):
            held[actor.address.node_id.hex()].update(actor.required_resources)
    return held


def runs(application: str) -> bool:
    """Whether Serve has an application of that name."""
    return application in serve.status().applications


def look(application: str) -> Seen:
    """What Serve, the gateway's holder and the gateway say. ConfigError if Serve does not run the application."""
    status = serve.status().applications.get(application)
    if status is None:
        raise ConfigError(f"{application} is not deployed on this cluster; expected `serve deploy FILE` before")
    deployments = {
        name: (
            deployment.status.value,
            {str(state): count for state, count in deployment.replica_states.items()},
            deployment.message,
        )
        for name, deployment in status.deployments.items()
    }
    seen = Seen(application, status.status.value, deployments)
    _, replicas, _ = deployments.get(GATEWAY, ("", {}, ""))
    if not any(replicas.get(state) for state in ("RUNNING", "UPDATING")):
        return seen  # nobody would answer

    try:
        told = json.loads(serve.get_deployment_handle(GATEWAY, application).status.remote().result(timeout_s=ANSWER_S))
    except (RayError, RayServeException, TimeoutError, KeyError):  # KeyError: Serve has not made the deployment yet
        return seen
    holders = [told["gateway"], *told["members"]]
    http = told["http"]
    workers, reason = _get(f"{http}/workers")
    models, _ = _get(f"{http}/v1/models")
    model = models["data"][0]["id"] if models else ""
    return Seen(application, seen.status, deployments, holders, http, workers or (), reason, model)


def _get(url: str) -> tuple[Any, str]:
    """(JSON at `url`, ""), or (None, why not)."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
            return json.loads(answer.read()), ""
    except urllib.error.HTTPError as error:
        keys = ": the gateway has an --api-key-file" if error.code == 401 else ""
        return None, f"answers {error.code}{keys}"
    except (OSError, ValueError) as error:
        return None, f"no answer ({error})"
