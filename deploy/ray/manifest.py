"""`baton ray manifest`: a RayService or a RayCluster for KubeRay, from a Serve config file and a number of pods. Pure.

    head       Ray's own processes and Serve's controller; computes nothing
    gateway    one pod, with the gateway; a Kubernetes service sends clients there
    compute    pods with the workers

Field names are those of ray.io/v1 (ray-project/kuberay, ray-operator/apis/ray/v1), `authOptions` those of its 1.5.1.
"""

import copy
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deploy.hub import is_hub_name
from deploy.ray.arguments import GATEWAY
from deploy.ray.config_file import Claim, ClusterFile
from deploy.ray.config_text import IMPORT_PATH
from protocol.errors import ConfigError, brief

PLACE: Final = "baton_gateway"  # what the pod of the gateway has, in Ray's words a resource, and no other has
Port = tuple[str, int]
_HEAD_PORTS: Final = (("gcs-server", 6379), ("dashboard", 8265), ("client", 10001))
PROXY_PORT: Final = 8001  # KubeRay counts a pod as ready when Serve's proxy on it answers
KINDS: Final = {"service": "RayService", "cluster": "RayCluster"}
_SMALL: Final = {"cpu": "2", "memory": "8Gi"}  # of a pod that does not compute
SPARE_S: Final = 60  # of a pod that leaves, beyond what its holders may take
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,40}[a-z0-9])?")
_HEAD: Final = """\
# Baton on KubeRay 1.5.1 or newer (authOptions): docker build -t {image} -f deploy/kuberay/Dockerfile .
#                                                kubectl apply -f FILE
# Change `image`, `resources` and, for a model of your own, the volume `models`, to what your cluster has.
"""
_HEAD_OF_CLUSTER: Final = """\
# Then `serve deploy` with the file that this was made from, whose Gateway claims its pod:
#   ray_actor_options: {{num_cpus: 1, resources: {{{place}: 1}}}}
"""


@dataclass(frozen=True)
class Wanted:
    """`kind`: "service" deploys Baton, too; "cluster" leaves that to `serve deploy`. `pods`: how many compute."""

    kind: str
    pods: int
    image: str
    ray_version: str


def manifest_text(file: ClusterFile, said: Mapping[str, Any], wanted: Wanted) -> str:
    """The YAML of a RayService or RayCluster, and of the Kubernetes service for its clients. `said` is the content of
    the file that `file` was read from. ConfigError for another kind, or if the workers are fewer than the pods."""
    if wanted.kind not in KINDS:
        raise ConfigError(f"ray manifest: got {brief(wanted.kind)}, expected one of {', '.join(KINDS)}")
    import yaml  # noqa: PLC0415  # of the extra `ray`

    class Text(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
        """Writes texts of several lines as such."""

    def written(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Text.add_representer(str, written)
    if not _NAME.fullmatch(file.application):
        expected = "at most 42 small letters, digits and dashes, a letter first: Kubernetes names things after it"
        raise ConfigError(f"name of the application: got {brief(file.application)}, expected {expected}")
    port = int((_gateway_of(said).get("user_config") or {}).get("port", 8000))
    spec = cluster_of(file, wanted, port)
    if wanted.kind == "service":
        config = yaml.safe_dump(for_kubernetes(said), sort_keys=False)
        spec = {"serveConfigV2": config, "rayClusterConfig": spec}
    ours = {
        "apiVersion": "ray.io/v1",
        "kind": KINDS[wanted.kind],
        "metadata": {"name": file.application},
        "spec": spec,
    }
    for_clients = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{file.application}-gateway"},
        "spec": {"selector": {"app": f"{file.application}-gateway"}, "ports": [{"name": "http", "port": port}]},
    }
    documents = [yaml.dump(document, Dumper=Text, sort_keys=False, width=120) for document in (ours, for_clients)]
    head = _HEAD + _HEAD_OF_CLUSTER * (wanted.kind == "cluster")
    return head.format(image=wanted.image, place=PLACE) + "---\n".join(documents)


def cluster_of(file: ClusterFile, wanted: Wanted, port: int) -> dict[str, Any]:
    """The RayClusterSpec. Clients reach the gateway at `port`."""
    gateway, *workers = file.claims
    cpus, gpus = _per_pod(workers, wanted.pods)
    model, drain_s = file.arguments.model, file.arguments.drain_s
    at_gateway = {"num-cpus": str(math.ceil(gateway.cpus)), "resources": f'"{{\\"{PLACE}\\": 1}}"'}
    of_gateway, of_worker = ({"app": f"{file.application}-{name}"} for name in ("gateway", "worker"))
    ports = [("serve", PROXY_PORT), ("http", port)]
    return {
        "rayVersion": wanted.ray_version,
        "authOptions": {"mode": "token"},
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},
            "template": {"spec": _pod("ray-head", wanted, drain_s, None, _SMALL, [*_HEAD_PORTS, ports[0]])},
        },
        "workerGroupSpecs": [
            _group("gateway", 1, at_gateway, of_gateway, _pod("ray-worker", wanted, drain_s, model, _SMALL, ports)),
            _group(
                "compute",
                wanted.pods,
                {},
                of_worker,
                _pod("ray-worker", wanted, drain_s, model, _resources(cpus, gpus), ports[:1]),
            ),
        ],
    }


def _group(
    name: str, pods: int, params: Mapping[str, str], labels: Mapping[str, str], pod: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "groupName": name,
        "replicas": pods,
        "minReplicas": pods,
        "maxReplicas": pods,
        "rayStartParams": dict(params),
        "template": {"metadata": {"labels": dict(labels)}, "spec": dict(pod)},
    }


def _pod(
    name: str, wanted: Wanted, drain_s: float, model: str | None, resources: Mapping[str, str], ports: Sequence[Port]
) -> dict[str, Any]:
    """A pod of one container. /dev/shm holds KV on its way between workers of one pod, and Ray's objects. Holders that
    leave take `drain_s` for the gateway and `drain_s` for themselves at most (deployments.py), then Ray ends."""
    leaving_s = math.ceil(2 * drain_s) + SPARE_S
    environment = {"RAY_worker_niceness": "0", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(leaving_s)}
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if model is not None and not is_hub_name(model):
        mounts.append({"name": "models", "mountPath": model, "readOnly": True})
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}})
    container = {
        "name": name,
        "image": wanted.image,
        "env": [{"name": variable, "value": value} for variable, value in environment.items()],
        "ports": [{"name": port_name, "containerPort": port} for port_name, port in ports],
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "volumeMounts": mounts,
    }
    return {"terminationGracePeriodSeconds": leaving_s + SPARE_S, "containers": [container], "volumes": volumes}


def _per_pod(workers: list[Claim], pods: int) -> tuple[int, int]:
    """Cores and GPUs of each pod, so that the workers fit when they are dealt out largest first."""
    shares = [(claim.gpus, claim.cpus) for claim in workers for _ in range(claim.most)]
    if not 1 <= pods <= len(shares):
        raise ConfigError(f"ray manifest: got {pods} pods, expected 1 to {len(shares)}, the number of workers")
    loads = [(0.0, 0.0)] * pods
    for gpus, cpus in sorted(shares, reverse=True):
        least = min(range(pods), key=loads.__getitem__)
        loads[least] = (loads[least][0] + gpus, loads[least][1] + cpus)
    return math.ceil(max(cpus for _, cpus in loads)), math.ceil(max(gpus for gpus, _ in loads))


def _resources(cpus: int, gpus: int) -> dict[str, str]:
    """Of a pod that computes. Ray's own processes take a core, too."""
    per_core_gib = 4
    resources = {"cpu": str(cpus + 1), "memory": f"{(cpus + 1) * per_core_gib}Gi"}
    return {**resources, "nvidia.com/gpu": str(gpus)} if gpus else resources


def for_kubernetes(said: Mapping[str, Any]) -> dict[str, Any]:
    """The Serve config: with proxies, at whose health KubeRay looks, and the gateway on its own pod."""
    config = copy.deepcopy(dict(said))
    config["proxy_location"] = "EveryNode"
    config["http_options"] = {"host": "0.0.0.0", "port": PROXY_PORT}
    gateway = _gateway_of(config)
    gateway["ray_actor_options"] = {**gateway.get("ray_actor_options", {}), "resources": {PLACE: 1}}
    return config


def _gateway_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """What the file says of the gateway's deployment. Adds it if it says nothing."""
    (ours,) = (application for application in said["applications"] if application["import_path"] == IMPORT_PATH)
    deployments: list[dict[str, Any]] = ours.setdefault("deployments", [])
    for deployment in deployments:
        if deployment.get("name") == GATEWAY:
            return deployment
    deployments.append({"name": GATEWAY})
    return deployments[-1]
