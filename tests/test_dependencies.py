"""`pip install .` alone serves: what is served needs the declared dependencies and no extra, and needs all of them."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement

from runtime.installation import ROOMS

ROOT = Path(__file__).resolve().parents[1]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
# Packages that another one installs and works with.
NEEDED_BY = {"httptools": "uvicorn", "starlette": "fastapi", "pydantic-core": "pydantic"}

# Optional backends: modules that are imported only when they are asked for, and the package that an extra brings.
OPTIONAL = {
    "loadtest.verify.folder": "transformers",
    "model.attention_kernels": "triton",
    "model.attention_triton": "triton",
    "model.experts_triton": "triton",
    "model.page_copies_triton": "triton",
    "model.passes_triton": "triton",
    "model.sampler_kernels": "triton",
    "model.sampler_passes": "triton",
    "model.sampler_triton": "triton",
    "transfer.in_place.device_moves_triton": "triton",
    "transfer.backends.ray.backend": "ray",
    "deploy.ray.cluster": "grpc",
    "deploy.ray.deployments": "ray",
    "deploy.ray.replica": "ray",
}

IMPORTS_ALL = """
import importlib, json, sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in BLOCKED else super().find_spec(name, path, target)

MODULES, BLOCKED = json.load(sys.stdin)
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
missing = {}
for module in MODULES:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing[module] = error.name
print(json.dumps(missing))
"""


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def with_needs(requirements: Iterable[str]) -> set[str]:
    """The distributions that these requirements install here, without extras of their own."""
    found: set[str] = set()
    todo = [Requirement(each) for each in requirements]
    while todo:
        one = todo.pop()
        if (one.marker is None or one.marker.evaluate({"extra": ""})) and normal(one.name) not in found:
            found.add(normal(one.name))
            try:
                todo += [Requirement(each) for each in requires(one.name) or ()]
            except PackageNotFoundError:
                continue
    return found


def modules() -> list[str]:
    """Every module of an installed room, save `__main__`, which would start its process."""
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths if path.name != "__main__.py"]
    return [name.removesuffix(".__init__") for name in names]


def test_every_room_is_imported_without_the_extras() -> None:
    installed = with_needs(DECLARED)
    blocked = [
        package
        for package, owners in packages_distributions().items()
        if package not in ROOMS and not {normal(owner) for owner in owners} & installed
    ]
    assert {"psutil", "aiohttp", "ray", "transformers"} <= set(blocked)
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS_ALL],
        input=json.dumps([modules(), blocked]), cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    missing = json.loads(done.stdout)
    assert missing.items() <= OPTIONAL.items() and missing["transfer.backends.ray.backend"] == "ray"


def test_every_dependency_is_imported_by_what_is_served() -> None:
    owners = packages_distributions()
    imported = set(NEEDED_BY)
    for path in (path for room in ROOMS if room != "loadtest" for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported |= {normal(owner) for name in names for owner in owners.get(name.partition(".")[0], ())}
    declared = {normal(Requirement(each).name) for each in DECLARED}
    assert declared <= imported
    assert imported - declared - set(NEEDED_BY) == {"baton-llm", "triton", "ray", "pyyaml", "grpcio"}
