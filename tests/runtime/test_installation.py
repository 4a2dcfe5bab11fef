"""runtime/installation.py: another distribution with one of our package names is noticed."""

from importlib.machinery import ModuleSpec
from importlib.util import find_spec

import pytest

from protocol.errors import ConfigError
from runtime import installation
from runtime.installation import check_distributions, check_imports, foreign_owners


def test_only_foreign_owners_of_our_names_count() -> None:
    owners = {"scheduler": ["baton-llm", "scheduler"], "model": ["baton-llm"], "numpy": ["numpy"]}
    assert foreign_owners(owners) == {"scheduler": ("scheduler",)}


def test_this_installation_is_clean() -> None:
    check_imports()
    check_distributions()
    assert foreign_owners({}) == {}


@pytest.mark.parametrize("origin", ["/elsewhere/scheduler/__init__.py", "/elsewhere/scheduler.py", None])
def test_a_shadowed_room_is_refused_by_name(origin: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(room: str) -> ModuleSpec | None:
        if room != "scheduler":
            return find_spec(room)
        return None if origin is None else ModuleSpec(room, None, origin=origin)

    monkeypatch.setattr(installation, "find_spec", find)
    with pytest.raises(ConfigError, match=f"'scheduler' comes from {origin or 'nowhere'}"):
        check_imports()


def test_a_second_owner_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "packages_distributions", lambda: {"model": ["some-model"]})
    with pytest.raises(ConfigError, match="'model' belongs to some-model"):
        check_distributions()
