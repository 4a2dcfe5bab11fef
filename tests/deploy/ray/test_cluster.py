"""What is asked of a cluster, without one."""

from types import SimpleNamespace

import pytest

pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")
from ray import serve

from deploy.ray.cluster import look


def test_a_gateway_that_serve_has_not_made_yet_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    deploying = SimpleNamespace(status=SimpleNamespace(value="DEPLOYING"), deployments={})
    monkeypatch.setattr(serve, "status", lambda: SimpleNamespace(applications={"baton": deploying}))

    def no_handle(name: str, application: str) -> None:
        raise KeyError(f"{name} of {application} does not exist.")

    monkeypatch.setattr(serve, "get_deployment_handle", no_handle)
    seen = look("baton")
    assert (seen.status, seen.holders, seen.http) == ("DEPLOYING", (), "")
