"""Short runs of benchmarks serve nobody who changes the product: `make test-slow` has them, `make test` has not."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is slow here is broad."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.broad)


@pytest.fixture(autouse=True)
def _late_heartbeats_lose_no_worker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is. Benchmarks that stop processes need the limit as it is."""
    if not any(name in str(request.path.relative_to(HERE)) for name in ("soak", "loss")):
        monkeypatch.setenv("BATON_SILENCE_LIMIT", "60")
