"""A Serve config file for Baton, and the keys that Serve knows, as far as these tests need them."""

import copy
from typing import Any

from deploy.ray.config_file import Known

KNOWN = Known(
    frozenset(["proxy_location", "http_options", "applications"]),
    frozenset(["name", "route_prefix", "import_path", "args", "deployments", "runtime_env"]),
    frozenset(["name", "num_replicas", "user_config", "ray_actor_options", "autoscaling_config"]),
    frozenset(["min_replicas", "max_replicas", "initial_replicas", "upscale_delay_s", "downscale_delay_s", "policy"]),
    frozenset(["policy_function", "policy_kwargs"]),
)
FILE: dict[str, Any] = {
    "proxy_location": "Disabled",
    "applications": [
        {
            "name": "baton",
            "route_prefix": None,
            "import_path": "deploy.ray:app",
            "args": {"roles": ["prefill", "decode"]},
            "deployments": [
                {"name": "Gateway", "user_config": {"port": 8000}},
                {"name": "Prefill", "num_replicas": 2, "ray_actor_options": {"num_cpus": 2}},
                {"name": "Decode", "num_replicas": 2, "user_config": {"page-size": 32}},
            ],
        }
    ],
}


def with_change(path: str, value: Any) -> dict[str, Any]:
    """FILE, with another value at `path`: "applications.0.args.roles"; a value of ... removes the key."""
    changed = copy.deepcopy(FILE)
    *parents, last = path.split(".")
    part: Any = changed
    for name in parents:
        part = part[int(name) if isinstance(part, list) else name]
    key = int(last) if isinstance(part, list) else last
    if value is ...:
        del part[key]
    else:
        part[key] = value
    return changed
