from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")

from deploy.ray import replica
from deploy.ray.holder import HolderState
from deploy.ray.replica import Place, Replica, as_endpoint, check_token, one_sentence, reachable, written_flags
from deploy.ray.share import Share
from protocol.errors import ConfigError
from runtime.address import is_loopback


@pytest.mark.parametrize(("node", "has_token"), [("10.0.0.5", True), ("127.0.0.1", False), ("::1", False)])
def test_a_cluster_is_closed_or_of_this_machine(monkeypatch: pytest.MonkeyPatch, node: str, has_token: bool) -> None:
    monkeypatch.setattr(replica, "is_token_auth_enabled", lambda: has_token)
    check_token(node)
    assert is_loopback(node) != has_token, "a case with both, or neither, shows nothing"


def test_an_open_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "is_token_auth_enabled", lambda: False)
    with pytest.raises(
        ConfigError, match=r"RAY_AUTH_MODE: got no token authentication, .*expected RAY_AUTH_MODE=token"
    ):
        check_token("10.0.0.5")


def test_an_error_names_its_node_and_the_key_of_the_file() -> None:
    with pytest.raises(RuntimeError) as raised, one_sentence("10.0.0.7"):
        raise ConfigError("--model: folder '/m' does not exist", param="model")
    assert str(raised.value) == "node 10.0.0.7: args.model: folder '/m' does not exist"
    assert raised.value.__suppress_context__, "Serve would show both"


@pytest.mark.parametrize("written", [None, [], 3, "x"])
def test_user_config_holds_flags(written: object) -> None:
    with pytest.raises(ConfigError, match=r"user_config: got .*, expected flags"):
        written_flags(written)


@pytest.mark.parametrize(
    ("http", "node", "told"),
    [
        ("http://0.0.0.0:8000", "10.0.0.5", "http://10.0.0.5:8000"),
        ("http://[::]:8000", "fd00::1", "http://[fd00::1]:8000"),
        ("http://10.0.0.6:8000", "10.0.0.5", "http://10.0.0.6:8000"),
        ("", "10.0.0.5", ""),
    ],
)
def test_clients_are_told_an_address_that_they_reach(http: str, node: str, told: str) -> None:
    assert reachable(http, node) == told


def test_an_endpoint_may_have_an_ipv6_address() -> None:
    assert (as_endpoint("10.0.0.5", 7000), as_endpoint("fd00::1", 0)) == ("tcp://10.0.0.5:7000", "tcp://[fd00::1]:0")


class Bare(Replica):
    """A replica without a cluster, which counts its starts. A flag "fails" makes one fail."""

    def __init__(self) -> None:
        self.place = Place("10.0.0.5", "decode-x", Share(1, 0, 1, 0))
        console = SimpleNamespace(trouble=lambda _: None)
        self.holder = SimpleNamespace(state=HolderState.WAITING, console=console)  # type: ignore[assignment]
        self.started: list[dict[str, Any]] = []
        self._latest = Future()
        self._runs_with = None

    async def start_with(self, written: dict[str, Any]) -> None:
        if "fails" in written:
            raise ConfigError("no such flag")
        self.started.append(written)
        self.holder.state = HolderState.SERVING


async def test_processes_that_run_stay_when_serve_says_the_same_again() -> None:
    """It does so when it numbers replicas anew."""
    bare, small, large = Bare(), {"page-size": 8}, {"page-size": 16}
    for written in (small, small, large, large):
        await bare.reconfigure(written)
    assert bare.started == [small, large]
    bare.holder.state = HolderState.MENDING
    await bare.reconfigure(large)
    await bare.reconfigure({"fails": 1})
    assert bare.refused == "no such flag", "Serve would end the replica for an error"
    await bare.reconfigure(large)
    assert bare.refused == ""
    assert bare.started == [small, large], "the wrong flag changed nothing, so there is nothing to take back"


async def test_what_was_given_up_is_started_with_the_same_flags() -> None:
    bare = Bare()
    await bare.reconfigure({})
    bare.holder.state = HolderState.GIVEN_UP
    with pytest.raises(RuntimeError, match=r"node 10\.0\.0\.5: no such flag"):
        await bare.reconfigure({"fails": 1})
    await bare.reconfigure({})
    assert bare.started == [{}, {}] and bare.refused == ""
