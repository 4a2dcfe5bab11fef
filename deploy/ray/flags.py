"""`user_config` of a deployment: the flags of `baton gateway` or `baton worker`, by their own declaration.

A change restarts the processes of that deployment only. What the holder gives itself is refused there, with the place
where it is decided.
"""

from collections.abc import Mapping
from typing import Any, Final

from deploy.options import options_for
from deploy.ray.arguments import GATEWAY
from protocol.errors import ConfigError
from runtime.layered_config import Config, ConfigFile, resolve

_COMMON: Final = {
    "model": "args.model has it, for all deployments",
    "revision": "args.revision has it, for all deployments",
    "drain-timeout": "args.drain_s has it, for all deployments",
    "keys": "each process makes its own pair of keys",
    "trust-network": "every process has keys",
    "config": "user_config is the file",
}
_OF_COMMAND: Final[dict[str, dict[str, str]]] = {
    "gateway": {"control": "the port is args.control_port"},
    "worker": {
        "role": "the deployment is the role",
        "gateway": "workers ask the gateway's holder",
        "worker-id": "it is the role and the name of the replica",
        "host": "it is the address of the node",
        "gpus": "Ray gives GPUs: ray_actor_options.num_gpus",
        "cpus": "Ray gives cores: ray_actor_options.num_cpus",
    },
}


def command_of(deployment: str) -> str:
    """The command of `baton` whose flags a deployment takes."""
    return "gateway" if deployment == GATEWAY else "worker"


def free_flags(deployment: str) -> tuple[str, ...]:
    """The flags that `user_config` of a deployment may have."""
    command = command_of(deployment)
    return tuple(option.name for option in options_for(command) if option.name not in decided(command))


def decided(command: str) -> Mapping[str, str]:
    """The flags that are decided elsewhere, and where."""
    return _COMMON | _OF_COMMAND[command]


def read_flags(deployment: str, written: Mapping[str, Any] | None, given: Mapping[str, str] | None = None) -> Config:
    """Every option of the deployment's command. `written` is `user_config`, `given` what the holder decides, as text.
    ConfigError names the deployment, the key, its value and what was expected."""
    command, origin = command_of(deployment), f"user_config of {deployment}"
    keys = {str(name).replace("_", "-"): value for name, value in (written or {}).items()}
    for name, where in decided(command).items():
        if name in keys:
            raise ConfigError(f"{origin}: {name} is not set there: {where}", param=name)

    options = options_for(command)
    return resolve(options, options, given or {}, {}, ConfigFile(origin, keys))
