"""A child answers in lines of JSON, and one that ends is an error."""

import sys

import pytest

from bench.child import Child
from protocol.errors import BatonError

PROGRAM = """
from bench.child import answer_all
def do(command):
    print("a library says something")
    return [command, 1 / command.get("by", 1)]
answer_all(do)
"""


def test_each_command_has_its_answer_whatever_libraries_print() -> None:
    child = Child((sys.executable, "-c", PROGRAM))
    try:
        assert child.ask(by=4) == [{"by": 4}, 0.25]
        child.tell(by=2)
        child.tell()
        assert (child.answer(), child.answer()) == ([{"by": 2}, 0.5], [{}, 1.0])
        with pytest.raises(BatonError, match="the process has ended"):
            child.ask(by=0)
    finally:
        child.close()
