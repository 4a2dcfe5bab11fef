"""The dtype of rows on a CPU, for tests of what runs in one call of C."""

import pytest
import torch

from model.linear import has_fast_bfloat16


@pytest.fixture(params=["bfloat16", "float32"])
def rows(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> torch.dtype:
    """The dtype of activations: bfloat16 on a CPU with instructions for it, float32 on one without."""
    dtype: torch.dtype = getattr(torch, request.param)
    if dtype is torch.bfloat16 and not has_fast_bfloat16():
        pytest.skip("this CPU has no instructions for bfloat16")
    monkeypatch.setattr("model.packing.has_fast_bfloat16", lambda: dtype is torch.bfloat16)
    return dtype
