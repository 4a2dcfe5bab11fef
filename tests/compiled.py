"""Triton kernels compiled for a GPU that need not be there: what the interpreter takes, a compiler may refuse."""

from typing import Any

HOPPER = ("cuda", 90, 32)


def cubin_bytes(
    kernel: Any, types: dict[str, str], constants: dict[str, Any], launch: dict[str, int] | None = None
) -> int:
    """The size of a kernel's code; see `compiled`."""
    return len(compiled(kernel, types, constants, launch).asm["cubin"])


def compiled(
    kernel: Any, types: dict[str, str], constants: dict[str, Any], launch: dict[str, int] | None = None
) -> Any:
    """A kernel for an H100; `types` of its arguments as Triton spells them ("*bf16", "i32").

    `launch`: num_warps and num_stages, if they are not Triton's own.
    """
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415 - an optional package
    from triton.compiler import ASTSource, compile  # noqa: A004, PLC0415

    signature = {each.name: types.get(each.name, "constexpr") for each in kernel.params}
    assert {name for name, kind in signature.items() if kind == "constexpr"} == set(constants)
    return compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants), target=GPUTarget(*HOPPER), options=launch or {}
    )
