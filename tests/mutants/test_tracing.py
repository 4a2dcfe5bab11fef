"""The plugin that notes what test files enter."""

import importlib.util
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutants.tracing import Plugin, Tracer, read

SOURCE = """
class Pool:
    def take(self):
        def inner(): return 1
        return [inner() for _ in range(3)]

async def later(): pass
def absent(): pass
def rows(): yield 1
"""


@pytest.fixture
def product(tmp_path: Path) -> ModuleType:
    path = tmp_path / "room/pool.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("product", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tracer(tmp_path: Path) -> Iterator[Tracer]:
    tracer = Tracer(tmp_path)
    yield tracer
    tracer.end()


def test_functions_are_named_by_file_and_a_nested_one_is_part_of_its_own(tracer: Tracer, product: ModuleType) -> None:
    tracer.begin()
    product.Pool().take()
    list(product.rows())
    assert tracer.take() == ["room/pool.py Pool.take", "room/pool.py rows"]


def test_each_thread_counts_and_what_came_before_does_not(tracer: Tracer, product: ModuleType) -> None:
    tracer.begin()
    product.Pool().take()
    tracer.begin()
    thread = threading.Thread(target=product.absent)
    thread.start()
    thread.join()
    assert tracer.take() == ["room/pool.py absent"]


def test_each_test_file_has_what_its_tests_have_entered(
    tmp_path: Path, product: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "traced.json"
    plugin = Plugin(tmp_path, out)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("tests/test_a.py::test_1", product.absent),
        ("tests/test_a.py::test_2[x::y]", product.Pool().take),
        ("tests/test_b.py::test_1", product.absent),
    ]
    for nodeid, call in calls:
        plugin.pytest_runtest_logstart(nodeid)
        call()
    plugin.pytest_sessionfinish()
    ran = read(out)
    assert ran["tests/test_a.py"].entered == {"room/pool.py absent", "room/pool.py Pool.take"}
    assert ran["tests/test_b.py"].entered == {"room/pool.py absent"}
    assert all(each.cpu_s >= 0 for each in ran.values())
