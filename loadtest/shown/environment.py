"""Where a report was made: versions, machine, endpoint, command. No secrets."""

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from loadtest.measure import Endpoint
from runtime.installation import baton_version

PACKAGES = ("uvloop", "httptools", "orjson", "numpy")
_CPUS = Path("/proc/cpuinfo")
_MEMORY = Path("/proc/meminfo")


def environment(endpoint: Endpoint, typed: Sequence[str]) -> dict[str, Any]:
    """As JSON."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["baton", "bench", *typed]),
        "endpoint": f"{endpoint.server}{endpoint.asking.path}",
        "model": endpoint.found.model,
        "context": endpoint.found.context,
        "asks_for_tokens": not endpoint.probed.is_plain,
        "versions": {"baton": baton_version(), "python": platform.python_version(), **_versions()},
        "machine": {
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "cpu": _field(_CPUS, "model name"),
            "cores": os.cpu_count(),
            "memory": _field(_MEMORY, "MemTotal"),
            "same_host": endpoint.server.host in ("127.0.0.1", "localhost", "::1"),
        },
    }


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _field(path: Path, name: str) -> str | None:
    """The first value of a field in a file of the kernel. None on other systems."""
    if not sys.platform.startswith("linux") or not path.exists():
        return None
    lines = (line.partition(":") for line in path.read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), None)
