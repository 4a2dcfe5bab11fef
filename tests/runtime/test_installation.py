"""runtime/installation.py: another distribution with one of our package names is noticed."""

from pathlib import Path

import pytest

from protocol.errors import ConfigError
from runtime import installation
from runtime.installation import check_distributions, check_imports, foreign_owners, misplaced


def test_rooms_beside_each_other_are_ours(tmp_path: Path) -> None:
    origins: dict[str, str | None] = {"scheduler": str(tmp_path / "scheduler" / "__init__.py")}
    assert misplaced(origins, tmp_path) == {}


@pytest.mark.parametrize("origin", ["/elsewhere/scheduler/__init__.py", "/elsewhere/scheduler.py", None])
def test_a_room_from_elsewhere_is_named(tmp_path: Path, origin: str | None) -> None:
    assert misplaced({"scheduler": origin}, tmp_path) == {"scheduler": origin}


def test_only_foreign_owners_of_our_names_count() -> None:
    owners = {"scheduler": ["baton-llm", "scheduler"], "model": ["baton-llm"], "numpy": ["numpy"]}
    assert foreign_owners(owners) == {"scheduler": ("scheduler",)}


def test_this_installation_is_clean() -> None:
    check_imports()
    check_distributions()
    assert foreign_owners({}) == {}


def test_a_shadowed_room_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_origin", lambda room: str(tmp_path / room / "__init__.py"))
    with pytest.raises(ConfigError, match="'protocol' comes from"):
        check_imports()


def test_a_second_owner_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "packages_distributions", lambda: {"model": ["some-model"]})
    with pytest.raises(ConfigError, match="'model' belongs to some-model"):
        check_distributions()
