"""What is said where the package is missing or broken."""

import sys
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from transfer.backends.nixl import agent
from transfer.backends.nixl.agent import Agent, is_installed


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "_PACKAGES", ("nixl_of_nobody",))
    assert not is_installed()
    with pytest.raises(ConfigError, match=r"transfer_backend: nixl .*pip install .* '\.\[nixl\]'"):
        Agent()


@pytest.mark.parametrize("says", ["import nowhere_at_all", "raise ImportError('libfoo.so.1: cannot open')"])
def test_a_package_that_cannot_be_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    (tmp_path / "nixl_broken").mkdir()
    (tmp_path / "nixl_broken" / "__init__.py").write_text(says)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(agent, "_PACKAGES", ("nixl_broken",))
    assert is_installed()
    with pytest.raises(ConfigError, match=r"nixl_broken cannot be loaded \((No module named|libfoo)"):
        Agent()
    assert "nixl_broken" not in sys.modules
