"""The constants of the application: `args` of the config file. A change of one restarts the whole application.

What may change while the application serves is in `user_config` of a deployment (flags.py), and counts are in
`num_replicas`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field

from protocol.errors import ConfigError
from protocol.messages_gateway import Role
from runtime.settings import Port, Settings

GATEWAY = "Gateway"
DEPLOYMENT_OF = {Role.PREFILL: "Prefill", Role.DECODE: "Decode", Role.UNIFIED: "Unified"}
DRAIN_S = 30
_PYDANTIC: Final = re.compile(": (Input should be|(Tuple|String) should have) ")  # how it begins to say what it expects


@dataclass(frozen=True, kw_only=True)
class Arguments(Settings):
    """`args`. `drain_s`: how long a process that leaves may take to finish its requests."""

    model: Annotated[str, Field(min_length=1)] | None = None  # None: the bundled model
    revision: Annotated[str, Field(min_length=1)] | None = None  # of a model that has a hub's name
    roles: Annotated[tuple[Role, ...], Field(min_length=1)] = (Role.PREFILL, Role.DECODE)
    control_port: Port = 0  # of the gateway, for workers; 0: the system chooses
    drain_s: Annotated[int, Field(ge=1, le=3600)] = DRAIN_S

    @property
    def of_model(self) -> dict[str, str]:
        """The flags that name the model."""
        named = {"model": self.model, "revision": self.revision}
        return {flag: value for flag, value in named.items() if value is not None}

    @property
    def deployments(self) -> tuple[str, ...]:
        """The names of the deployments, the gateway first."""
        return (GATEWAY, *(DEPLOYMENT_OF[role] for role in self.roles))


def read_arguments(written: Mapping[str, Any]) -> Arguments:
    """The arguments as written in the file. ConfigError names the key, its value and what was expected."""
    try:
        arguments = Arguments.from_json(json.dumps(written))
    except ConfigError as error:
        said = _PYDANTIC.sub(", expected ", error.message.replace("Arguments", "args", 1), count=1)
        raise ConfigError(said, param=error.param) from None
    except TypeError as error:  # a date, say
        raise ConfigError(f"args: {error}; expected strings, numbers and lists") from None

    check_roles(arguments.roles)
    return arguments


def check_roles(roles: tuple[Role, ...]) -> None:
    """Raises ConfigError for a role that is named twice, or that cannot work without another."""
    names = ", ".join(roles)
    if len(set(roles)) != len(roles):
        raise ConfigError(f"args.roles: got {names}, expected each role once", param="roles")
    for have, lack in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        if have in roles and lack not in roles:
            raise ConfigError(
                f"args.roles: got {names}, expected {lack} too: a {have} worker needs at least one {lack} worker",
                param="roles",
            )
