"""The passes between products, and attention of decodes, in C (cpu_kernels.c). Each reads and writes memory once.

The machine's C compiler builds the library when a model first needs it, for the model's head size and types. The
library is kept in the user's cache.
Shapes as in passes.py; F = D / 2 frequencies, B requests that decode, P pages of the longest context.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from model.paged_kv import TORCH_DTYPES, PagedKv
from model.passes import Rotation, Rows
from runtime.model_config import ModelConfig

SOURCE: Final = Path(__file__).with_suffix(".c")
SERVED: Final = {  # (type of activations, type of pages) -> macros of cpu_kernels.c
    (torch.float32, torch.float32): (),
    (torch.bfloat16, torch.bfloat16): ("-DACT_BF16", "-DPAGE_BF16"),
    (torch.float32, torch.bfloat16): ("-DPAGE_BF16",),
}
# Sums may be taken in any order, but NaN and infinities must be kept, so not -ffast-math.
FLAGS: Final = (
    "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-ffp-contract=fast", "-fno-math-errno",
    "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-freciprocal-math",
    *(("-mprefer-vector-width=512",) if platform.machine() == "x86_64" else ()),
)  # fmt: skip
BUILD_LIMIT_S: Final = 120.0
_POINTER, _LONG, _FLOAT, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_ARGUMENTS: Final = {
    "rms_norm": [_POINTER] * 3 + [_LONG] * 2 + [_FLOAT, _INT],
    "gated": [_POINTER] * 3 + [_LONG] * 3 + [_INT],
    "place": [_POINTER, _LONG] * 3 + [_POINTER, _FLOAT] + [_POINTER] * 6 + [_LONG] * 3 + [_INT],
    "attend": [_POINTER] * 3 + [_LONG] + [_POINTER] * 4 + [_LONG] * 4 + [_INT],
}


class NoKernels(Exception):
    """The kernels cannot be used here. The message says why in one sentence."""


@dataclass(frozen=True)
class CpuKernels:
    """One built library for one model: Passes, and attention of decodes. It uses as many threads as torch."""

    library: ctypes.CDLL
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float

    def rms_norm(self, x_TE: Tensor, weight_E: Tensor) -> Tensor:
        """See Passes."""
        assert x_TE.is_contiguous()
        out_TE = torch.empty_like(x_TE)
        rows, width = x_TE.shape
        self.library.rms_norm(
            x_TE.data_ptr(), weight_E.data_ptr(), out_TE.data_ptr(), rows, width, self.eps, torch.get_num_threads()
        )
        return out_TE

    def rotation(self, positions_T: Tensor, inv_freq_F: Tensor) -> Rotation:
        """(T, F) each; see Passes."""
        angles_TF = positions_T.to(torch.float32)[:, None] * inv_freq_F
        return angles_TF.cos(), angles_TF.sin()

    def place(
        self,
        qkv: tuple[Tensor, ...],
        norm_ND: Tensor | None,
        rotation: Rotation,
        kv: PagedKv,
        layer: int,
        rows: Rows,
    ) -> Tensor:
        """See Passes."""
        q, k, v = self._parts(qkv, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim)
        cos, sin = rotation
        assert cos.is_contiguous() and sin.is_contiguous()
        tokens = qkv[0].shape[0]
        out_THD = torch.empty((tokens, self.num_heads, self.head_dim), dtype=qkv[0].dtype)
        self.library.place(
            *q, *k, *v, None if norm_ND is None else norm_ND.data_ptr(), self.eps, cos.data_ptr(), sin.data_ptr(),
            rows[0].data_ptr(), rows[1].data_ptr(), out_THD.data_ptr(), kv.layer(layer).data_ptr(),
            tokens, self.num_heads, self.num_kv_heads, torch.get_num_threads(),
        )  # fmt: skip
        return out_THD

    def gated(self, gate_up: tuple[Tensor, ...]) -> Tensor:
        """See Passes."""
        rows, width = gate_up[0].shape
        if len(gate_up) == 1:
            width //= 2
        (gate, stride), (up, _) = self._parts(gate_up, width)
        out_TI = torch.empty((rows, width), dtype=gate_up[0].dtype)
        self.library.gated(gate, up, out_TI.data_ptr(), rows, width, stride, torch.get_num_threads())
        return out_TI

    def _parts(self, products: tuple[Tensor, ...], *sizes: int) -> list[tuple[int, int]]:
        """(address, elements from row to row) of each product.

        For products side by side in one tensor, `sizes` has the width of each but the last.
        """
        assert all(product.is_contiguous() for product in products)
        if len(products) > 1:
            return [(product.data_ptr(), product.shape[1]) for product in products]
        at, stride, item = products[0].data_ptr(), products[0].shape[1], products[0].element_size()
        return [(at + start * item, stride) for start in accumulate((0, *sizes))]

    def attend(
        self,
        q_BHD: Tensor,
        kv_layer: Tensor,
        page_table_BP: Tensor,
        seq_lens_B: Tensor,
        tree_mask: tuple[Tensor, Tensor] | None,
        out_BHD: Tensor,
    ) -> None:
        """out = softmax(q k / sqrt(D)) v of each request's token over its context. Slots behind it are not read.

        `tree_mask` are the starts and bits of a tree mask, see ModelInput. Slots that it hides are not read.
        """
        assert q_BHD.is_contiguous() and out_BHD.is_contiguous()
        assert page_table_BP.stride(1) == 1 and seq_lens_B.is_contiguous()
        starts, bits = (None, None) if tree_mask is None else (each.data_ptr() for each in tree_mask)
        assert tree_mask is None or all(each.is_contiguous() for each in tree_mask)
        self.library.attend(
            q_BHD.data_ptr(), kv_layer.data_ptr(), page_table_BP.data_ptr(), page_table_BP.stride(0),
            seq_lens_B.data_ptr(), starts, bits, out_BHD.data_ptr(), q_BHD.shape[0], self.num_heads,
            self.num_kv_heads, kv_layer.shape[2], torch.get_num_threads(),
        )  # fmt: skip


def load_kernels(config: ModelConfig, activations: torch.dtype, pages: str) -> CpuKernels:
    """The kernels for a model, built if they are not in the cache. `pages` is the dtype of KV. Raises NoKernels."""
    defines = SERVED.get((activations, TORCH_DTYPES[pages]))
    if defines is None:
        raise NoKernels(f"there are none for {activations} with pages of {pages}")

    path = built_library([*defines, f"-DHEAD_DIM={config.head_dim}"])
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NoKernels(f"{path} cannot be loaded: {error}") from None

    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return CpuKernels(library, config.num_heads, config.num_kv_heads, config.head_dim, config.rms_norm_eps)


def built_library(defines: list[str]) -> Path:
    """The path of the library. Builds it unless this machine's compiler has built it before. Raises NoKernels."""
    compiler = find_compiler()
    command = [*compiler, *FLAGS, *defines]
    known_by = "\n".join((SOURCE.read_text(), shlex.join(command), _version(compiler), _cpu()))
    name = f"cpu_kernels-{hashlib.sha256(known_by.encode()).hexdigest()[:24]}.so"
    path = cache_folder() / name
    if not path.exists():
        _build(command, path)
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


def _build(command: list[str], path: Path) -> None:
    """Builds under a temporary name first, so that workers which start together never load half a library."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".so", delete=False) as file:
            unfinished = Path(file.name)
    except OSError as error:
        raise NoKernels(f"{path.parent} cannot be written: {error.strerror}") from None

    try:
        ran = _run([*command, "-o", str(unfinished), str(SOURCE), "-lm"])
        if ran.returncode != 0:
            lines = ran.stderr.strip().splitlines() or [f"exit status {ran.returncode}"]
            raise NoKernels(f"{command[0]} cannot build them: {lines[0]}")
        unfinished.replace(path)
    except OSError as error:
        raise NoKernels(f"{path} cannot be written: {error.strerror}") from None
    finally:
        unfinished.unlink(missing_ok=True)


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
