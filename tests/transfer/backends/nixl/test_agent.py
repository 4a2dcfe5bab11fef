"""What is said where the package is missing or broken."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


class UcxError(Exception):
    """As the package's own."""


class Refused:
    """An agent whose UCX is refused its own port, as long as `left` says so."""

    left, made = 0, list["Refused"]()

    def __init__(self, name: str, config: Any) -> None:
        self.name, self.has_progress_thread = name, config.useProgThread
        self.made.append(self)

    def createBackend(self, name: str, options: dict[str, str]) -> None:
        type(self).left -= 1
        if self.left >= 0:
            raise UcxError("NIXL_ERR_BACKEND")

    def getLocalMD(self) -> bytes:
        return self.name.encode()


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> type[Refused]:
    package = SimpleNamespace(nixlAgent=Refused, nixlAgentConfig=SimpleNamespace, UcxError=UcxError)
    monkeypatch.setattr(agent, "_package", lambda: package)
    monkeypatch.setattr(Refused, "made", [])
    return Refused


@pytest.mark.parametrize("times", [0, 1, 2])
def test_an_agent_that_is_refused_its_own_port_is_made_anew(
    times: int, refused: type[Refused], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused, "left", times)
    made = Agent()
    assert len({agent.name for agent in refused.made}) == times + 1
    assert made.export == refused.made[-1].name.encode()
    assert all(agent.has_progress_thread for agent in refused.made)


def test_one_that_is_refused_each_time_ends_the_start(refused: type[Refused], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "left", 3)
    with pytest.raises(ConfigError, match=r"nixl cannot be used here \(NIXL_ERR_BACKEND\)"):
        Agent()
    assert len(refused.made) == 3
