from pathlib import Path
from typing import Any

import pytest

from deploy.ray.config_file import Claim, read_cluster, read_cluster_file
from protocol.errors import ConfigError
from tests.deploy.ray.files import FILE, KNOWN, with_change

APP = "applications.0."
DECODE = f"{APP}deployments.2."


def test_what_each_deployment_claims() -> None:
    cluster = read_cluster(FILE, KNOWN)
    assert (cluster.application, cluster.has_proxies) == ("baton", False)
    assert cluster.claims == (Claim("Gateway", 1, 1, 0), Claim("Prefill", 2, 2, 0), Claim("Decode", 2, 1, 0))


def test_a_deployment_that_is_not_named_has_one_replica() -> None:
    cluster = read_cluster(with_change(f"{APP}deployments", ...), KNOWN)
    assert cluster.claims == tuple(Claim(name, 1, 1, 0) for name in ("Gateway", "Prefill", "Decode"))


def with_scaling(**keys: Any) -> dict[str, Any]:
    """FILE, with an autoscaling_config of the decode workers."""
    changed = with_change(DECODE + "num_replicas", ...)
    changed["applications"][0]["deployments"][2]["autoscaling_config"] = keys
    return changed


def test_autoscaling_claims_what_it_has_at_first_and_what_load_may_bring() -> None:
    policy = {"policy_function": "deploy.ray.scaling:ByLoad", "policy_kwargs": {"itl_ms": 50, "kv": None}}
    cluster = read_cluster(with_scaling(min_replicas=1, max_replicas=7, upscale_delay_s=3, policy=policy), KNOWN)
    assert cluster.claims[2] == Claim("Decode", 1, 1, 0, extra=6)
    cluster = read_cluster(with_scaling(initial_replicas=3, max_replicas=7, policy=policy), KNOWN)
    assert cluster.claims[2] == Claim("Decode", 3, 1, 0, extra=4)


def by_load(**kwargs: Any) -> dict[str, Any]:
    return {"policy": {"policy_function": "deploy.ray.scaling:ByLoad", "policy_kwargs": kwargs}}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"max_replica": 4}, "autoscaling_config of Decode: unknown key 'max_replica', did you mean 'max_replicas'?"),
        ({"min_replicas": 5, "max_replicas": 2}, "autoscaling_config of Decode: got min_replicas '5' and max_repl"),
        ({"min_replicas": 0, "max_replicas": 2}, "autoscaling_config of Decode: got min_replicas '0' and"),
        ({"min_replicas": "x"}, "autoscaling_config of Decode: got min_replicas 'x' and max_replicas '1', exp"),
        (by_load(itl=5), "policy_kwargs of Decode: unknown key 'itl', did you mean 'itl_ms'?"),
        (by_load(itl_ms=-1), "policy of Decode: policy_kwargs: itl_ms is -1, expected a number above 0, or null"),
        ({"policy": 3}, "policy of Decode: got '3', expected keys"),
        ({"max_replicas": 2}, "policy of Decode: got no policy_function, expected deploy.ray.scaling:ByLoad"),
        ({"policy": {"policy_functin": "a:b"}}, "policy of Decode: unknown key 'policy_functin', did you mean 'policy"),
        ({"policy": {"policy_function": "deploy.ray.scaling.ByLoad", "policy_kwargs": {"it": 1}}},
            "policy_kwargs of Decode: unknown key 'it'"),
        ({"max_replicas": 2, "initial_replicas": 3}, "autoscaling_config of Decode: got initial_replicas '3', exp"),
    ],
)  # fmt: skip
def test_what_is_wrong_of_autoscaling_is_named(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_cluster(with_scaling(**keys), KNOWN)
    assert raised.value.message.startswith(said)


def test_a_count_beside_autoscaling_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_replicas of Decode: got 2, expected none beside autoscaling_config"):
        read_cluster(with_change(DECODE + "autoscaling_config", {"max_replicas": 7}), KNOWN)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("proxy_loction", 1, "the file: unknown key 'proxy_loction', did you mean 'proxy_location'?"),
        ("applications", [], "applications: got '[]', expected a list"),
        (APP + "import_path", "deploy.rai:app", "import_path: got 'deploy.rai:app', expected deploy.ray:app once"),
        (APP + "route_prefix", "/", "route_prefix: got '/', expected null"),
        (APP + "arguments", {}, "the application: unknown key 'arguments', did you mean 'args'?"),
        (APP + "args", {"rolls": []}, "args: unknown key 'rolls'"),
        (APP + "args", [1], "args: got '[1]', expected keys"),
        (APP + "deployments", {}, ...),
        (APP + "deployments", 3, "deployments: got '3', expected a list"),
        (DECODE + "name", "Unified",
            "deployments: got the name 'Unified', expected one of Gateway, Prefill, Decode; a role is"),
        (DECODE + "name", "decode", "deployments: got the name 'decode', expected one of Gateway, Prefill, Decode"),
        (DECODE + "name", "Prefill", "deployments: Prefill is there twice"),
        (DECODE + "num_replica", 2, "deployments: unknown key 'num_replica', did you mean 'num_replicas'?"),
        (DECODE + "num_replicas", 0, "num_replicas of Decode: got '0', expected an integer of at least 1; a role"),
        (DECODE + "num_replicas", True, "num_replicas of Decode: got 'True'"),
        (DECODE + "user_config", {"page-size": 0},
            "page-size in user_config of Decode: got 0, expected an integer from 1"),
        (DECODE + "ray_actor_options", {"num_cpus": -1}, "num_cpus of Decode: got '-1', expected a number"),
        (DECODE + "ray_actor_options", {"num_cpus": 0}, "ray_actor_options of Decode: got num_cpus 0 and num_gpus 0"),
        (DECODE + "ray_actor_options", {"num_gpus": 1.5}, "ray_actor_options of Decode: got num_gpus 1.5"),
        (f"{APP}deployments.0.num_replicas", 2, "num_replicas of Gateway: got 2, expected 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(path: str, value: Any, said: Any) -> None:
    changed = with_change(path, value)
    if said is ...:  # an empty mapping counts as not there
        assert read_cluster(changed, KNOWN).claims[0].deployment == "Gateway"
        return
    with pytest.raises(ConfigError) as raised:
        read_cluster(changed, KNOWN)
    assert raised.value.message.startswith(said)


@pytest.mark.parametrize("content", [None, [], "text", 5])
def test_a_file_that_is_no_mapping_is_refused(content: Any) -> None:
    with pytest.raises(ConfigError, match=r"the file: got .* expected keys with values"):
        read_cluster(content, KNOWN)


def test_errors_of_a_file_begin_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("yaml", reason="the extra `ray` is not installed")
    monkeypatch.chdir(tmp_path)  # errors shorten long paths
    path = Path("baton.yaml")
    for text, said in {
        "applications: [": "not valid YAML",
        "applications: !!python/object:os.system {}": "not valid YAML",
        "applications: 3": "applications: got '3'",
    }.items():
        path.write_text(text)
        with pytest.raises(ConfigError) as raised:
            read_cluster_file(str(path), KNOWN)
        assert said in raised.value.message and "baton.yaml" in raised.value.message
    with pytest.raises(ConfigError, match=r"nowhere.yaml.: cannot be read: .*would take the name for Python's"):
        read_cluster_file("nowhere.yaml", KNOWN)
