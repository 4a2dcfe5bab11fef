"""The hooks themselves, without processes."""

import importlib
import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from model.fake import FakeRunner
from tests.faults.hooked import sitecustomize


def test_a_broken_process_raises_in_every_forward_also_with_a_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sitecustomize, "FOLDER", str(tmp_path))
    module = ModuleType("model.fake")
    vars(module)["FakeRunner"] = type("FakeRunner", (FakeRunner,), {})
    sitecustomize._fake_model(module)

    runner = vars(module)["FakeRunner"]()
    (tmp_path / "broken.json").write_text(json.dumps(os.getpid()))
    for forward in (runner.forward, runner.forward_with_features):
        with pytest.raises(RuntimeError, match="every forward of this process fails"):
            forward()
    assert (tmp_path / "raised").read_text().split() == [str(os.getpid())] * 2


@pytest.mark.parametrize("name", sitecustomize.PATCHES)
def test_a_hook_takes_every_argument_of_the_method_that_it_wraps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that gets one more argument would end the worker in the middle of a request, instead of this test."""
    wrapped: list[str] = []

    def wrap(
        owner: type, method: str, before: Callable[..., None], after: Callable[..., None] = lambda *_: None
    ) -> None:
        arguments = [None] * len(inspect.signature(getattr(owner, method)).parameters)
        inspect.signature(before).bind(*arguments)
        inspect.signature(after).bind(None, *arguments)
        wrapped.append(method)

    monkeypatch.setattr(sitecustomize, "_wrap", wrap)
    sitecustomize.PATCHES[name](importlib.import_module(name))
    assert wrapped
