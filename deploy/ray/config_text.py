"""`baton ray config`: the text of a Serve config file, from the flags of `baton serve`. Pure.

The file is for `serve deploy`, `serve run` and the `serveConfigV2` of a RayService. Its comments say what to change.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from deploy.layout import check_counts
from deploy.model_folder import NAMED_AT_HUB, is_at_hub
from deploy.options import RAY_CONFIG, options_for
from deploy.ray.arguments import DEPLOYMENT_OF, GATEWAY
from deploy.ray.flags import free_flags
from protocol.errors import ConfigError
from protocol.messages_gateway import Role
from runtime.layered_config import Config, Origin

IMPORT_PATH: Final = "deploy.ray:app"
APPLICATION: Final = "baton"
POLICY: Final = "deploy.ray.scaling:ByLoad"
_WRITTEN_ELSEWHERE: Final = (
    "model",
    "revision",
    "prefill",
    "decode",
    "unified",
    "dp-size",
    "prefill-dp-size",
    "decode-dp-size",
    "config",
    *(option.name for option in options_for(RAY_CONFIG) if option.commands == (RAY_CONFIG,)),
)
# flag of an aim: what ByLoad calls it, by how much it is divided, the roles that it is for, what it says
AIMS: Final = {
    "target-kv-percent": ("kv", 100, tuple(Role), "share of its KV pages that requests hold at each worker"),
    "target-queued-tokens": ("queued_tokens", 1, tuple(Role), "prompt tokens that wait at each worker"),
    "target-ttft-ms": ("ttft_ms", 1, (Role.PREFILL, Role.UNIFIED), "time to first token, 90th percentile"),
    "target-itl-ms": ("itl_ms", 1, (Role.DECODE, Role.UNIFIED), "time between tokens, 90th percentile"),
}

_HEAD: Final = """\
# Baton on Ray Serve.    baton ray plan FILE    who would run where, and what is missing; starts nothing
#                        serve deploy FILE      starts it, or changes what runs to what this file says
#                        baton ray status       who runs where, and the address for clients
# Every node needs the same Baton, Python and Ray, and the model in the same folder. Before `ray start` on each node:
#   export RAY_AUTH_MODE=token RAY_worker_niceness=0
# For as many workers of a role as the load needs: baton ray config --prefill-max 4 --decode-max 4
proxy_location: Disabled      # Baton's gateway answers clients itself; cannot be changed while Serve runs
applications:
  - name: {name}
    route_prefix: null
    import_path: {import_path}
    args:                     # a change here restarts everything
      model: {model}
      roles: {roles}
    deployments:
      - name: Gateway
        user_config:          # flags of `baton gateway`; a change restarts this process only
{gateway}
        ray_actor_options: {{num_cpus: 1}}
"""
_WORKER: Final = """\
      - name: {name}
{count}
        user_config:          # flags of `baton worker`; a change restarts the workers of this role, a few at a time
{flags}
        ray_actor_options: {{num_cpus: {cpus}, num_gpus: {gpus}}}   # {claim}
"""
_FIXED: Final = "        num_replicas: {count}       # workers of this role; change it and say `serve deploy` again"
_BY_LOAD: Final = """\
        autoscaling_config:   # as many workers of this role as the load needs, within these bounds
          min_replicas: {fewest}
          max_replicas: {most}
          upscale_delay_s: 30     # so long more workers must be needed before Serve adds them
          downscale_delay_s: 600  # and so long fewer, before it takes them away
          policy:             # the figure that needs most workers decides; docs/ray.md
            policy_function: "{policy}"
            policy_kwargs:    # at most
{aims}"""


def config_text(config: Config) -> str:
    """The file for these options of `baton serve`. Raises ConfigError for those that a cluster has no use for."""
    counts = {role: int(config[role.value]) for role in Role}
    check_counts(*(counts[role] for role in (Role.PREFILL, Role.DECODE, Role.UNIFIED)))
    roles = [role for role in Role if counts[role]]
    check_scaling(config, counts)
    given = {name: setting for name, setting in config.settings.items() if setting.origin is not Origin.DEFAULT}
    for name in given:
        if name not in _WRITTEN_ELSEWHERE and not any(
            name in free_flags(deployment) for deployment in (GATEWAY, DEPLOYMENT_OF[roles[0]])
        ):
            raise ConfigError(
                f"--{name}: not for a cluster, where Ray gives cores and GPUs (ray_actor_options in the file), and"
                " every process makes its own keys",
                param=name,
            )

    head = _HEAD.format(
        name=APPLICATION,
        import_path=IMPORT_PATH,
        model=_model(config),
        roles=_yaml([role.value for role in roles]),
        gateway=_block({"port": config["port"]} | _flags_of(GATEWAY, given)),
    )
    return head + "".join(_worker(config, role, counts[role], given) for role in roles)


def _model(config: Config) -> str:
    """The model and its revision, if it has one. A node finds a hub's name by itself."""
    wanted, revision = config["model"], config["revision"]
    if wanted is None:
        return "null             # the bundled model"
    model = _yaml(wanted if is_at_hub(wanted) else config.path("model"))
    return model if revision is None else f"{model}\n      revision: {_yaml(revision)}"


def _worker(config: Config, role: Role, count: int, given: Mapping[str, Any]) -> str:
    own = f"{role.value}-dp-size"
    ranks: int = (config[own] if own in config.settings else None) or config["dp-size"]
    flags = _flags_of(DEPLOYMENT_OF[role], given)
    if ranks > 1:
        flags = {"dp-size": ranks} | flags
    on_gpu = str(config["device"]).startswith("cuda")
    claim = f"of each worker; for a GPU{' for each rank' * (ranks > 1)}: --device cuda"
    return _WORKER.format(
        name=DEPLOYMENT_OF[role],
        count=_count(config, role, count),
        flags=_block(flags),
        cpus=config["threads"] or ranks,
        gpus=ranks if on_gpu else 0,
        claim="of each worker" if on_gpu else claim,
    )


def check_scaling(config: Config, counts: Mapping[Role, int]) -> None:
    """Raises ConfigError for a most that its role cannot grow to, and for an aim of a role that does not grow."""
    for role, fewest in counts.items():
        most, name = config[f"{role.value}-max"], f"{role.value}-max"
        if most is not None and not 1 <= fewest <= most:
            expected = f"at least --{role.value} {fewest}" if fewest else f"--{role.value} of at least 1 beside it"
            raise ConfigError(f"--{name}: got {most}, expected {expected}", param=name)

    for name, (_, _, roles, _) in AIMS.items():
        is_given = config.settings[name].origin is not Origin.DEFAULT
        if is_given and all(config[f"{role.value}-max"] is None for role in roles):
            flags = " or ".join(f"--{role.value}-max" for role in roles)
            raise ConfigError(
                f"--{name}: got {config[name]}, expected {flags} beside it: no such role grows", param=name
            )


def _count(config: Config, role: Role, fewest: int) -> str:
    """How many replicas: a fixed number, or as many as the load needs."""
    most = config[f"{role.value}-max"]
    if most is None:
        return _FIXED.format(count=fewest)
    aims = []
    for flag, (name, divisor, roles, meaning) in AIMS.items():
        if role in roles and config[flag] is not None:
            aim = config[flag] if divisor == 1 else config[flag] / divisor
            aims.append(f"{' ' * 14}{name}: {aim}   # {meaning}")
    return _BY_LOAD.format(fewest=fewest, most=most, policy=POLICY, aims="\n".join(aims))


def _flags_of(deployment: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that the user gave and that this deployment takes. Flags of sizes are written by `_worker`."""
    names = [name for name in free_flags(deployment) if name not in _WRITTEN_ELSEWHERE and name in given]
    return {name: _as_elsewhere(given, name) for name in names}


def _as_elsewhere(given: Mapping[str, Any], name: str) -> Any:
    """The value of a flag as a process with another working directory takes it."""
    value = given[name].value
    is_hubs = name in NAMED_AT_HUB and value is not None and is_at_hub(value)
    return Config(given).path(name) if given[name].option.is_path and not is_hubs else value


def _block(flags: Mapping[str, Any]) -> str:
    """`user_config`, a line for each flag."""
    lines = [f"{name}: {_yaml(value)}" for name, value in flags.items()] or ["{}"]
    return "\n".join(" " * 10 + line for line in lines)


def _yaml(value: Any) -> str:
    """A value in YAML's flow style, which JSON is a part of."""
    return json.dumps(value, ensure_ascii=False)
