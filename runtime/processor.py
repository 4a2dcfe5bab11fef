"""What oneDNN, which computes torch's products on CPUs, must be told of the processor before its first one."""

import os
import re
from pathlib import Path

MAX_ISA = "ONEDNN_MAX_CPU_ISA"
_TILE_LEAF = 0x1D  # of the CPUID instruction: the sizes of AMX tiles
_WITHOUT_AMX = "AVX512_CORE_FP16"  # the most of AVX-512, and no AMX
_CPUINFO = Path("/proc/cpuinfo")


def product_environment() -> dict[str, str]:
    """Environment for a process that computes. The user's own ONEDNN_MAX_CPU_ISA wins.

    Where the processor is not described, AMX is not used: slower, but it cannot end the process.
    """
    if MAX_ISA in os.environ:
        return {}
    try:
        cpuinfo = _CPUINFO.read_text(errors="replace")
    except OSError:
        return {MAX_ISA: _WITHOUT_AMX}
    return {MAX_ISA: _WITHOUT_AMX} if hides_tiles(cpuinfo) else {}


def hides_tiles(cpuinfo: str) -> bool:
    """Whether the processor claims AMX, but does not say how large a tile is, as in some virtual machines.

    oneDNN then configures tiles of no size, and the first product of bfloat16 ends the process with SIGILL. `cpuinfo`
    is the text of /proc/cpuinfo; `cpuid level` in it is the last leaf that CPUID answers.
    """
    level = re.search(r"^cpuid level\s*:\s*(\d+)", cpuinfo, re.MULTILINE)
    return level is not None and int(level[1]) < _TILE_LEAF and re.search(r"\bamx_tile\b", cpuinfo) is not None
