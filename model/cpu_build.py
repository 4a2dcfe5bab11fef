"""Builds the C code of this folder with the machine's C compiler, and keeps the libraries in the user's cache.

A worker builds for its own CPU when a model first needs it. `baton kernels build` builds for each level of instructions
of CPUs like this one, so that an image has them: a worker takes the best of those that its CPU can run.
"""

import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
HEADERS: Final = (
    "cpu_experts.h",
    "cpu_in_place.h",
    "cpu_kernels.h",
    "cpu_lanes.h",
    "cpu_layers.h",
    "cpu_products.h",
    "cpu_team.h",
)
_COMMON: Final = ("-O3", "-pthread", "-fPIC", "-fno-math-errno")
_WIDE: Final = ("-mprefer-vector-width=512",) if platform.machine() == "x86_64" else ()
# Sums may be taken in any order, but NaN and infinities must be kept, so not -ffast-math.
_ANY_ORDER: Final = (
    *_COMMON, "-ffp-contract=fast", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math",
    "-freciprocal-math", *_WIDE,
)  # fmt: skip
_ONE_ORDER: Final = (*_COMMON, "-ffp-contract=off")
_AS_WRITTEN: Final = (*_COMMON, "-ffp-contract=fast", "-fno-trapping-math", *_WIDE)  # a product and a sum may be one
SOURCES: Final = {  # each file and its flags
    "cpu_attention.c": _AS_WRITTEN,
    "cpu_draft.c": _ANY_ORDER,
    "cpu_experts.c": _ONE_ORDER,
    "cpu_kernels.c": _ANY_ORDER,
    "cpu_layers.c": _ANY_ORDER,
    "cpu_products.c": _ONE_ORDER,
    "cpu_products_bf16.c": _ONE_ORDER,
    "cpu_products_float32.c": _ONE_ORDER,
    "cpu_products_in_place.c": _ONE_ORDER,
    "cpu_team.c": _ONE_ORDER,
}
MACROS: Final[dict[tuple[str, str], tuple[str, ...]]] = {  # (type of activations, type of pages) -> of cpu_kernels.h
    ("float32", "float32"): (),
    ("bfloat16", "bfloat16"): ("-DACT_BF16", "-DPAGE_BF16"),
    ("float32", "bfloat16"): ("-DPAGE_BF16",),
}
BUILD_LIMIT_S: Final = 120.0
LOCK: Final = "lock"
UNFINISHED: Final = "building-"  # prefix of the folders in which libraries are built
_WRITABLE: Final = "can be written by other users"
_CPUINFO = Path("/proc/cpuinfo")


class NoKernels(Exception):
    """The kernels cannot be used here. The message says why in one sentence."""


@dataclass(frozen=True)
class Level:
    """Instructions that many CPUs have: the compiler's flags for them, and their names in /proc/cpuinfo."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]


_V3: Final = frozenset("avx avx2 bmi1 bmi2 f16c fma abm movbe xsave".split())
_V4: Final = _V3 | frozenset("avx512f avx512bw avx512cd avx512dq avx512vl".split())
# AMX's tiles are used only where cpu_products_bf16.c finds them at run time, so they are no need.
_BF16: Final = ("-mavx512bf16", "-mamx-tile", "-mamx-bf16")
LEVELS: Final = (  # the best first
    Level("x86-64-v4-bf16", ("-march=x86-64-v4", *_BF16), _V4 | {"avx512_bf16"}),
    Level("x86-64-v4", ("-march=x86-64-v4",), _V4),
    Level("x86-64-v3", ("-march=x86-64-v3",), _V3),
)


def macros(types: tuple[str, str], head_dim: int) -> list[str]:
    """The compiler's options for these types and this head size. KeyError for types that are not in MACROS."""
    return [*MACROS[types], f"-DHEAD_DIM={head_dim}"]


def levels_here() -> tuple[Level, ...]:
    """The levels for CPUs of this kind."""
    return LEVELS if platform.machine() == "x86_64" else ()


def built_library(defines: Sequence[str]) -> Path:
    """The path of a library for this CPU. Builds one unless there is one. Raises NoKernels."""
    folder, cpu = cache_folder(), _cpu()
    instructions = {word for line in cpu.splitlines() for word in line.partition(":")[2].split()}
    for level in levels_here():
        path = folder / _name(_texts(), level.name, *defines)
        if level.needs <= instructions and path.exists():
            return _own(path)

    compiler = find_compiler()
    commands = [shlex.join([*compiler, *flags, *defines]) for flags in SOURCES.values()]
    path = folder / _name(_texts(), *commands, _version(compiler), cpu)
    _build_once(compiler, ["-march=native", *defines], path)
    return _own(path)


def build_level(level: Level, defines: Sequence[str]) -> tuple[Path, bool]:
    """The path of a library for all CPUs of `level`, and whether this call has built it: it may be there already.
    Raises NoKernels."""
    path = cache_folder() / _name(_texts(), level.name, *defines)
    is_new = _build_once(find_compiler(), [*level.flags, *defines], path)
    return _own(path), is_new


def find_compiler() -> list[str]:
    """The C compiler: CC of the environment, or the first of cc, gcc and clang. Raises NoKernels."""
    try:
        asked = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise NoKernels(f"CC: got {os.environ['CC']!r}, expected a command: {error}") from None
    if asked and shutil.which(asked[0]) is None:
        raise NoKernels(f"CC: got {asked[0]!r}, which is not a program here")
    compilers = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]
    if not asked and not compilers:
        raise NoKernels("there is no C compiler (cc, gcc or clang) here")
    return asked or compilers[:1]


# ---- the cache: what lies there is run, so nobody else may write it ----


def cache_folder() -> Path:
    """The folder for built libraries; it is made if missing. Raises NoKernels if another user can write into it, or can
    put another folder in its place."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton" / "kernels"
    except RuntimeError as error:
        raise NoKernels(f"there is no folder to keep them in: {error}") from None
    try:
        for parent in reversed(folder.parents):
            if not parent.exists():
                parent.mkdir(mode=0o700, exist_ok=True)  # with `parents=True` the umask would say who may write
        folder.mkdir(mode=0o700, exist_ok=True)
        folder = folder.resolve()
        for parent in (folder, *folder.parents):
            if reason := _why_foreign(parent.stat(), is_above=parent != folder):
                raise NoKernels(f"{parent} {reason}, expected this user and root alone; {_remedy(parent, reason)}")
    except OSError as error:
        raise NoKernels(f"{folder} cannot be made: {error.strerror}") from None
    return folder


def _why_foreign(status: os.stat_result, *, is_above: bool) -> str:
    """Why another user can change what lies at a path, or "". In a folder above, as /tmp, others may add what is theirs
    if the sticky bit lets nobody replace what is another's."""
    if status.st_uid not in (os.getuid(), 0):
        return "belongs to another user"
    is_sticky = is_above and status.st_mode & stat.S_ISVTX
    return _WRITABLE if status.st_mode & 0o022 and not is_sticky else ""


def _remedy(folder: Path, reason: str) -> str:
    """What a person can do about a folder that is not used."""
    other = "set XDG_CACHE_HOME to another folder"
    return f"run `chmod g-w,o-w {shlex.quote(str(folder))}`, or {other}" if reason == _WRITABLE else other


def _own(path: Path) -> Path:
    """`path`, unless another user can have written it. Raises NoKernels."""
    try:
        reason = _why_foreign(path.lstat(), is_above=False)
    except OSError as error:
        raise NoKernels(f"{path} cannot be read: {error.strerror}") from None
    if reason:
        raise NoKernels(f"{path} {reason}, expected this user and root alone")
    return path


def _name(*known_by: str) -> str:
    return f"cpu_kernels-{hashlib.sha256(chr(10).join(known_by).encode()).hexdigest()[:24]}.so"


def _texts() -> str:
    return "\n".join((FOLDER / name).read_text() for name in (*SOURCES, *HEADERS))


# ---- building ----


def _build_once(compiler: list[str], options: Sequence[str], path: Path) -> bool:
    """Builds the library unless it is there; returns whether it did. Of workers that start together one builds, and the
    others wait for it."""
    if path.exists():
        return False
    try:
        with _locked(path.parent / LOCK):
            if path.exists():
                return False
            for left in path.parent.glob(f"{UNFINISHED}*"):  # by a worker that was killed
                shutil.rmtree(left)
            _build(compiler, options, path)
            return True
    except OSError as error:
        raise NoKernels(f"{path} cannot be written: {error.strerror}") from None


@contextmanager
def _locked(path: Path) -> Generator[None, None, None]:
    """Holds the lock of this file, which ends with the process, too."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _build(compiler: list[str], options: Sequence[str], path: Path) -> None:
    """Builds in a folder beside `path` first, so that no worker loads half a library."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=UNFINISHED) as folder:
        objects = [str(Path(folder) / f"{name}.o") for name in SOURCES]
        for (name, flags), compiled in zip(SOURCES.items(), objects, strict=True):
            _compile([*compiler, *flags, *options, "-c", "-o", compiled, str(FOLDER / name)])
        unfinished = Path(folder) / path.name
        _compile([*compiler, "-shared", "-pthread", "-o", str(unfinished), *objects, "-lm"])
        unfinished.chmod(0o700)
        unfinished.replace(path)


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
    """The lines that identify this CPU's instructions. Raises NoKernels if they cannot be read."""
    try:
        lines = _CPUINFO.read_text(errors="replace").splitlines()
    except OSError as error:
        raise NoKernels(f"{_CPUINFO} cannot be read: {error.strerror}") from None
    known = ("flags", "Features", "model name", "CPU part")
    return platform.machine() + "\n" + "\n".join(sorted({line for line in lines if line.startswith(known)}))
