"""`baton kernels build`: builds the C code that serves models on CPUs before a worker needs it, as for an image.

It builds for every level of instructions of CPUs like this one, so that the image serves on other CPUs, too, and needs
no compiler. A worker looks for these libraries in its user's cache: run the command as that user.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from model.cpu_build import MACROS, Level, NoKernels, build_level, levels_here, macros
from protocol.errors import ConfigError, brief
from runtime.clock import MonotonicClock

HEAD_SIZES: Final = (64, 128)  # of most models
EVEN: Final = range(2, 1025, 2)  # rotation turns one half of a head into the other


def kernels(words: Sequence[str], usage: str) -> Iterator[str]:
    """Runs `baton kernels WORDS`; gives a line to print for each library, and a last one with their numbers. Raises
    ConfigError for wrong words, and where nothing can be built."""
    if not words or words[0] != "build":
        got = f"got {brief(words[0])}, expected" if words else "expected"
        raise ConfigError(f"kernels: {got} {usage}")
    sizes = [_head_size(word, usage) for word in words[1:]] or list(HEAD_SIZES)
    if not levels_here():
        raise ConfigError("kernels build: CPUs like this one have no common levels; a worker builds at its start")

    num_built = num_there = 0
    clock, seconds = MonotonicClock(), 0.0
    for size in dict.fromkeys(sizes):
        for types in MACROS:
            for level in levels_here():
                begun = clock.now()
                path, is_new = _built(level, types, size)
                took_s = clock.now() - begun if is_new else 0.0
                num_built, num_there, seconds = num_built + is_new, num_there + (not is_new), seconds + took_s
                how = f"built in {took_s:.1f} s" if is_new else "already built"
                yield f"{level.name}, heads of {size}, activations {types[0]}, KV {types[1]}: {how}: {path}"
    yield f"libraries: {num_built} built in {seconds:.1f} s, {num_there} already built"


def _head_size(word: str, usage: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= len(str(EVEN[-1])) and int(word) in EVEN):
        raise ConfigError(f"kernels build: got {brief(word)}, expected an even head size from 2 to {EVEN[-1]}; {usage}")
    return int(word)


def _built(level: Level, types: tuple[str, str], size: int) -> tuple[Path, bool]:
    try:
        return build_level(level, macros(types, size))
    except NoKernels as error:
        raise ConfigError(f"kernels build: {error}") from error
