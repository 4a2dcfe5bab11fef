"""Builds the C code of this folder with the machine's C compiler, and keeps the library in the user's cache."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
HEADERS: Final = ("cpu_kernels.h", "cpu_products.h", "cpu_team.h")
_COMMON: Final = ("-O3", "-march=native", "-pthread", "-fPIC", "-fno-math-errno")
# Sums may be taken in any order, but NaN and infinities must be kept, so not -ffast-math.
_ANY_ORDER: Final = (
    *_COMMON, "-ffp-contract=fast", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math",
    "-freciprocal-math", *(("-mprefer-vector-width=512",) if platform.machine() == "x86_64" else ()),
)  # fmt: skip
_ONE_ORDER: Final = (*_COMMON, "-ffp-contract=off")
SOURCES: Final = {  # each file and its flags
    "cpu_kernels.c": _ANY_ORDER,
    "cpu_layers.c": _ANY_ORDER,
    "cpu_products.c": _ONE_ORDER,
    "cpu_products_bf16.c": _ONE_ORDER,
    "cpu_team.c": _ONE_ORDER,
}
BUILD_LIMIT_S: Final = 120.0


class NoKernels(Exception):
    """The kernels cannot be used here. The message says why in one sentence."""


def built_library(defines: list[str]) -> Path:
    """The path of the library. Builds it unless this machine's compiler has built it before. Raises NoKernels."""
    compiler = find_compiler()
    texts = [(FOLDER / name).read_text() for name in (*SOURCES, *HEADERS)]
    commands = [shlex.join([*compiler, *flags, *defines]) for flags in SOURCES.values()]
    known_by = "\n".join((*texts, *commands, _version(compiler), _cpu()))
    name = f"cpu_kernels-{hashlib.sha256(known_by.encode()).hexdigest()[:24]}.so"
    path = cache_folder() / name
    if not path.exists():
        _build(compiler, defines, path)
    return path


def find_compiler() -> list[str]:
    """The C compiler: CC of the environment, or the first of cc, gcc and clang. Raises NoKernels."""
    try:
        asked = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise NoKernels(f"CC: got {os.environ['CC']!r}, expected a command: {error}") from None
    if asked and shutil.which(asked[0]) is None:
        raise NoKernels(f"CC: got {asked[0]!r}, which is not a program here")
    found = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]
    if not asked and not found:
        raise NoKernels("there is no C compiler (cc, gcc or clang) here")
    return asked or found[:1]


def cache_folder() -> Path:
    """The folder for built libraries; it is made if missing. Raises NoKernels if another user can write into it.

    Libraries in this folder are run.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton" / "kernels"
    except RuntimeError as error:
        raise NoKernels(f"there is no folder to keep them in: {error}") from None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise NoKernels(f"{folder} cannot be made: {error.strerror}") from None
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise NoKernels(f"{folder} can be written by other users, expected this one alone")
    return folder


def _build(compiler: list[str], defines: list[str], path: Path) -> None:
    """Builds in a folder beside `path` first, so that workers which start together never load half a library."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            objects = [str(Path(folder) / f"{name}.o") for name in SOURCES]
            for (name, flags), compiled in zip(SOURCES.items(), objects, strict=True):
                _compile([*compiler, *flags, *defines, "-c", "-o", compiled, str(FOLDER / name)])
            unfinished = Path(folder) / path.name
            _compile([*compiler, "-shared", "-pthread", "-o", str(unfinished), *objects, "-lm"])
            unfinished.replace(path)
    except OSError as error:
        raise NoKernels(f"{path} cannot be written: {error.strerror}") from None


def _compile(command: list[str]) -> None:
    ran = _run(command)
    if ran.returncode != 0:
        lines = ran.stderr.strip().splitlines() or [f"exit status {ran.returncode}"]
        raise NoKernels(f"{command[0]} cannot build them: {lines[0]}")


def _version(compiler: list[str]) -> str:
    return _run([*compiler, "--version"]).stdout


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=BUILD_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoKernels(f"{command[0]} cannot build them: {error}") from None


def _cpu() -> str:
    """The text that identifies this CPU's instructions for -march=native."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    known = ("flags", "Features", "model name", "CPU part")
    return platform.machine() + "\n".join(sorted({line for line in lines if line.startswith(known)}))
