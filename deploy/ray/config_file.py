"""Reads and checks a Serve config file that deploys Baton, before anything starts: one sentence for each fault.

Serve itself ignores unknown keys, and starts with its defaults when it takes a mistyped path for an import path.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.ray.arguments import DEPLOYMENT_OF, GATEWAY, Arguments, read_arguments
from deploy.ray.config_text import IMPORT_PATH, POLICY
from deploy.ray.flags import read_flags
from deploy.ray.scaling import FIGURES, ByLoad
from deploy.ray.share import Share
from protocol.errors import ConfigError, brief
from runtime.files import Unreadable, read_text
from runtime.options import nearest_name

MAX_FILE_BYTES = 1 << 20
DEFAULT_CPUS = 1.0  # of a replica whose deployment does not say: deployments.py


@dataclass(frozen=True)
class Claim:
    """What the replicas of a deployment need: how many there are at first, the cores and GPUs of each, and how many
    more of them load may bring."""

    deployment: str
    replicas: int
    cpus: float
    gpus: float
    extra: int = 0

    @property
    def most(self) -> int:
        """How many there may be."""
        return self.replicas + self.extra


@dataclass(frozen=True)
class ClusterFile:
    """A checked file."""

    application: str
    arguments: Arguments
    claims: tuple[Claim, ...]  # the gateway's first
    has_proxies: bool


@dataclass(frozen=True)
class Known:
    """The keys that Serve knows, by their place: the file, an application, a deployment and so on."""

    file: frozenset[str]
    application: frozenset[str]
    deployment: frozenset[str]
    scaling: frozenset[str]  # an autoscaling_config
    policy: frozenset[str]  # its policy


def read_cluster_file(path: str, known: Known) -> ClusterFile:
    """The file at `path`. ConfigError names the file, the key, its value and what was expected."""
    fields = read_yaml(path)
    try:
        return read_cluster(fields, known)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", param=error.param) from None


def read_yaml(path: str) -> Any:
    """The content of the file at `path`. ConfigError if it cannot be read."""
    import yaml  # noqa: PLC0415  # of the extra `ray`

    try:
        return yaml.safe_load(read_text(Path(path).expanduser(), MAX_FILE_BYTES, "utf-8-sig"))
    except (Unreadable, RuntimeError) as error:
        raise ConfigError(
            f"{brief(path)}: cannot be read: {error}; `serve deploy` and `serve run` would take the name for Python's"
        ) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{brief(path)}: not valid YAML: {' '.join(str(error).split())[:200]}") from error


def read_cluster(fields: Any, known: Known) -> ClusterFile:
    """The content of a file."""
    file = _mapping(fields, "the file", known.file)
    applications = file.get("applications")
    if not isinstance(applications, list) or not applications:
        raise ConfigError(f"applications: got {brief(str(applications))}, expected a list with one that is Baton's")
    ours = [
        application
        for application in applications
        if isinstance(application, dict) and application.get("import_path") == IMPORT_PATH
    ]
    if len(ours) != 1:
        named = [str(application.get("import_path")) for application in applications if isinstance(application, dict)]
        raise ConfigError(f"import_path: got {brief(', '.join(named))}, expected {IMPORT_PATH} once")

    application = _mapping(ours[0], "the application", known.application)
    arguments = read_arguments(_mapping(application.get("args") or {}, "args"))
    if application.get("route_prefix", "/") is not None:
        got = application.get("route_prefix", "/")
        raise ConfigError(f"route_prefix: got {brief(str(got))}, expected null: clients talk to Baton's gateway")
    claims = read_claims(arguments, application.get("deployments") or [], known)
    has_proxies = file.get("proxy_location", "EveryNode") != "Disabled"
    return ClusterFile(str(application.get("name", "default")), arguments, claims, has_proxies)


def read_claims(arguments: Arguments, deployments: Any, known: Known) -> tuple[Claim, ...]:
    """What each deployment needs, also one that the file does not name."""
    if not isinstance(deployments, list):
        raise ConfigError(f"deployments: got {brief(str(deployments))}, expected a list")
    by_name: dict[str, Mapping[str, Any]] = {}
    for raw in deployments:
        deployment = _mapping(raw, "deployments", known.deployment)
        name = str(deployment.get("name"))
        if name not in arguments.deployments:
            expected = ", ".join(arguments.deployments)
            hint = "; a role is added in args.roles, too" if name in DEPLOYMENT_OF.values() else ""
            raise ConfigError(f"deployments: got the name {brief(name)}, expected one of {expected}{hint}")
        if name in by_name:
            raise ConfigError(f"deployments: {name} is there twice, expected once")
        by_name[name] = deployment
    return tuple(_claim(name, by_name.get(name, {}), known) for name in arguments.deployments)


def _claim(name: str, deployment: Mapping[str, Any], known: Known) -> Claim:
    read_flags(name, _mapping(deployment.get("user_config") or {}, f"user_config of {name}"))
    options = _mapping(deployment.get("ray_actor_options") or {}, f"ray_actor_options of {name}")
    cpus = _number(options.get("num_cpus", DEFAULT_CPUS), f"num_cpus of {name}")
    gpus = _number(options.get("num_gpus", 0), f"num_gpus of {name}")
    Share(cpus, gpus, cpus, gpus).check(name)

    replicas, most = deployment.get("num_replicas", 1), None
    if (scaling := deployment.get("autoscaling_config")) is not None:
        if "num_replicas" in deployment:
            raise ConfigError(f"num_replicas of {name}: got {replicas}, expected none beside autoscaling_config")
        scaling = _mapping(scaling, f"autoscaling_config of {name}", known.scaling)
        replicas, most = _bounds(name, scaling)
        _check_policy(name, _mapping(scaling.get("policy") or {}, f"policy of {name}", known.policy))
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        expected = "an integer of at least 1; a role without workers is left out of args.roles"
        raise ConfigError(f"num_replicas of {name}: got {brief(str(replicas))}, expected {expected}")
    most = replicas if most is None else most
    if name == GATEWAY and most != 1:
        raise ConfigError(f"num_replicas of {name}: got {most}, expected 1: workers have one gateway")
    return Claim(name, replicas, cpus, gpus, most - replicas)


def _bounds(name: str, scaling: Mapping[str, Any]) -> tuple[int, int]:
    """How many replicas an autoscaling_config has at first, and at most."""
    least, most = scaling.get("min_replicas", 1), scaling.get("max_replicas", 1)
    if any(isinstance(bound, bool) or not isinstance(bound, int) for bound in (least, most)) or not 1 <= least <= most:
        got = f"min_replicas {brief(str(least))} and max_replicas {brief(str(most))}"
        raise ConfigError(f"autoscaling_config of {name}: got {got}, expected integers, the first from 1 to the second")
    first = scaling.get("initial_replicas")
    first = least if first is None else first
    if isinstance(first, bool) or not isinstance(first, int) or not least <= first <= most:
        got = f"initial_replicas {brief(str(first))}"
        raise ConfigError(f"autoscaling_config of {name}: got {got}, expected an integer from {least} to {most}")

    return first, most


def _check_policy(name: str, policy: Mapping[str, Any]) -> None:
    """Checks the policy of an autoscaling_config. Another one than Baton's takes what its author says."""
    function = policy.get("policy_function")
    if not function:
        raise ConfigError(
            f"policy of {name}: got no policy_function, expected {POLICY}: Serve's own counts requests that cross"
            " Serve, and Baton's do not"
        )
    kwargs = _mapping(policy.get("policy_kwargs") or {}, f"policy_kwargs of {name}")
    if str(function).replace(":", ".") == POLICY.replace(":", "."):
        _mapping(kwargs, f"policy_kwargs of {name}", frozenset(FIGURES))
        try:
            ByLoad(**kwargs)
        except ValueError as error:
            raise ConfigError(f"policy of {name}: {error}") from None


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
        raise ConfigError(f"{what}: got {brief(str(value))}, expected a number of at least 0")
    return float(value)


def _mapping(value: Any, what: str, known: frozenset[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{what}: got {brief(str(value))}, expected keys with values")
    for key in value if known is not None else ():
        if key not in (known or ()):
            near = nearest_name(str(key), known or ())
            hint = f", did you mean {near!r}?" if near else ""
            raise ConfigError(f"{what}: unknown key {brief(str(key))}{hint}", param=str(key))
    return value
