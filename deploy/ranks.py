"""How many ranks a worker has: reads --dp-size, --enable-dp-attention and --tp-size, before any process starts.

The ranks of a worker are processes that have requests and KV of their own and share the MLP of each layer.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.model_folder import shared_widths
from protocol.errors import ConfigError
from runtime.layered_config import Config

_DP: Final = "dp-size"
_TP: Final = "tp-size"
_SHARED: Final = "enable-dp-attention"


def sizes_of(config: Config, model: Path, roles: Sequence[str]) -> dict[str, int]:
    """The number of ranks of a worker of each role. ConfigError if an option asks for what there is not, or if the
    ranks cannot share the model."""
    sizes, widths = {}, shared_widths(model)
    for role in roles:
        name = _option_for(config, role)
        size = sizes[role] = int(config[name])
        if size > 1 and not config[_SHARED]:
            replicas = f"{_replicas(config, name, roles)} for workers that share nothing"
            raise _refused(config, name, f"expected --{_SHARED} beside it, or {replicas}")
        if config[_TP] not in (1, size):
            raise _refused(config, _TP, _no_tensor_parallelism(config, name))
        for field, width in widths.items():
            if width % size:
                expected = f"expected a divisor of {width}, the model's {field}, which the ranks of a worker share"
                raise _refused(config, name, expected)
    return sizes


def _option_for(config: Config, role: str) -> str:
    """The option that has the number of ranks of a role."""
    own = f"{role}-{_DP}"
    return own if own in config.settings and config[own] is not None else _DP


def _replicas(config: Config, name: str, roles: Sequence[str]) -> str:
    """What to type for as many workers of their own instead of ranks."""
    size, of_option = config[name], [role for role in roles if _option_for(config, role) == name]
    if of_option[0] in config.settings:
        return " ".join(f"--{role} {size}" for role in of_option)
    return f"{size} commands, each with --workers-on-host {size},"


def _no_tensor_parallelism(config: Config, name: str) -> str:
    wanted = f"--{_DP} {config[_TP]} --{_SHARED}"
    if config[_SHARED] and config[name] > 1:
        return f"expected {config[name]}, as --{name}, or 1: the ranks of one worker do not share attention yet"
    return f"expected {wanted} beside it: ranks share the MLP of each layer only, no tensor parallelism yet"


def _refused(config: Config, name: str, reason: str) -> ConfigError:
    return ConfigError(f"--{name}: got {config[name]}, {reason}", param=name)
