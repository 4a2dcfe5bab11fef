"""What is asked of a cluster, without one."""

from types import SimpleNamespace

import pytest

pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")
from ray import serve
from ray.core.generated import gcs_pb2

from deploy.ray.cluster import held_by, is_here, look


def test_a_gateway_that_serve_has_not_made_yet_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    status = SimpleNamespace(value="DEPLOYING")
    gateway = SimpleNamespace(status=status, replica_states={"RUNNING": 1}, message="")
    deploying = SimpleNamespace(status=status, deployments={"Gateway": gateway})
    monkeypatch.setattr(serve, "status", lambda: SimpleNamespace(applications={"baton": deploying}))

    def no_handle(name: str, application: str) -> None:
        raise KeyError(f"{name} of {application} does not exist.")

    monkeypatch.setattr(serve, "get_deployment_handle", no_handle)
    seen = look("baton")
    assert (seen.status, seen.holders, seen.http) == ("DEPLOYING", (), "")


def test_what_an_application_holds_is_counted_by_node() -> None:
    def actor(name: str, node: bytes, **claims: float) -> gcs_pb2.ActorTableData:
        made = gcs_pb2.ActorTableData(name=name, required_resources=claims)
        made.address.node_id = node
        return made

    a, b = b"\x0a" * 28, b"\x0b" * 28
    held = held_by(
        "baton",
        [
            actor("SERVE_REPLICA::baton#Decode#x1", a, CPU=4.0, GPU=2.0),
            actor("SERVE_REPLICA::baton#Prefill#x2", a, CPU=1.0),
            actor("SERVE_REPLICA::baton#Gateway#x3", b, CPU=1.0),
            actor("SERVE_REPLICA::baton2#Decode#x4", a, CPU=8.0),
            actor("SERVE_CONTROLLER_ACTOR", b, CPU=8.0),
        ],
    )
    assert held == {a.hex(): {"CPU": 5.0, "GPU": 2.0}, b.hex(): {"CPU": 1.0}}
    assert held["elsewhere"]["GPU"] == 0


def test_nobody_is_asked_while_no_gateway_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question would wait for ten seconds."""
    status = SimpleNamespace(value="UNHEALTHY")
    gateway = SimpleNamespace(status=status, replica_states={"STARTING": 1}, message="node a: in use")
    failed = SimpleNamespace(status=status, deployments={"Gateway": gateway})
    monkeypatch.setattr(serve, "status", lambda: SimpleNamespace(applications={"baton": failed}))
    monkeypatch.setattr(serve, "get_deployment_handle", pytest.fail)
    assert look("baton").deployments == {"Gateway": ("UNHEALTHY", {"STARTING": 1}, "node a: in use")}


def test_addresses_of_this_host() -> None:
    assert is_here("127.0.0.1") and not is_here("192.0.2.1") and not is_here("no such name.invalid")
