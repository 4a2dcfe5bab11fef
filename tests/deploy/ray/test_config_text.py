import re
from pathlib import Path
from typing import Any

import pytest

from deploy.cli import find_config, parse
from deploy.options import RAY_CONFIG
from deploy.ray.config_file import Claim, read_cluster
from deploy.ray.config_text import AIMS, config_text
from deploy.ray.flags import read_flags
from deploy.ray.placement import Node, missing, place
from deploy.ray.scaling import FIGURES, ByLoad
from protocol.errors import ConfigError
from tests.deploy.configs import config
from tests.deploy.ray.files import KNOWN

yaml = pytest.importorskip("yaml", reason="the extra `ray` is not installed")


def text_of(**flags: str) -> str:
    return config_text(config(RAY_CONFIG, **flags))


def test_a_file_without_flags_is_a_pair() -> None:
    cluster = read_cluster(yaml.safe_load(text_of()), KNOWN)
    assert cluster.application == "baton" and cluster.arguments.model is None and not cluster.has_proxies
    assert cluster.claims == tuple(Claim(name, 1, 1, 0) for name in ("Gateway", "Prefill", "Decode"))


def test_a_name_at_a_hub_stays_as_it_is_for_each_node() -> None:
    found = read_cluster(yaml.safe_load(text_of(model="org/tiny", revision="v1")), KNOWN)
    assert found.arguments.of_model == {"model": "org/tiny", "revision": "v1"}
    assert read_cluster(yaml.safe_load(text_of(model="org/tiny")), KNOWN).arguments.of_model == {"model": "org/tiny"}

    draft = {"speculative-algorithm": "eagle", "speculative-draft-model-path": "org/draft", "tokenizer": "org/texts"}
    raw = yaml.safe_load(text_of(**draft))
    gateway, *workers = raw["applications"][0]["deployments"]
    assert gateway["user_config"]["tokenizer"] == "org/texts"
    assert len(workers) == 2 and all(draft.items() <= worker["user_config"].items() for worker in workers)
    (gateway, *_) = yaml.safe_load(text_of(tokenizer="texts"))["applications"][0]["deployments"]
    assert gateway["user_config"]["tokenizer"] == str(Path("texts").absolute())


def test_counts_and_flags_come_to_their_deployments() -> None:
    raw = yaml.safe_load(
        text_of(
            model="models/story",
            prefill="3",
            decode="2",
            unified="1",
            page_size="32",
            port="9000",
            pairing="round_robin",
        )
    )
    cluster = read_cluster(raw, KNOWN)
    assert cluster.arguments.model == str(Path("models/story").absolute())
    assert {claim.deployment: claim.replicas for claim in cluster.claims} == {
        "Gateway": 1, "Prefill": 3, "Decode": 2, "Unified": 1,
    }  # fmt: skip
    flags = {deployment["name"]: deployment["user_config"] for deployment in raw["applications"][0]["deployments"]}
    assert flags["Gateway"] == {"port": 9000, "pairing": "round_robin"}
    assert flags["Prefill"] == flags["Decode"] == {"page-size": 32}


def test_a_group_claims_a_core_and_a_gpu_for_each_rank() -> None:
    raw = yaml.safe_load(text_of(decode_dp_size="4", enable_dp_attention="true", device="cuda"))
    claims = {claim.deployment: claim for claim in read_cluster(raw, KNOWN).claims}
    assert (claims["Prefill"].gpus, claims["Decode"].gpus, claims["Decode"].cpus) == (1, 4, 4)
    decode = raw["applications"][0]["deployments"][2]["user_config"]
    assert read_flags("Decode", decode)["dp-size"] == 4


def test_eight_hosts_of_eight_gpus_hold_what_the_docs_say() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/ray.md").read_text()
    (flags,) = re.findall(r"^\| 8 of 8 GPUs \| `(.*)` \|$", page, re.MULTILINE)
    line = parse(["ray", "config", *flags.split()], "test")
    claims = read_cluster(yaml.safe_load(config_text(find_config(line, {}))), KNOWN).claims
    nodes = [Node("head", 0, 0, is_head=True), *(Node(f"host-{index}", 64, 8) for index in range(8))]
    places = place(claims, nodes)
    assert missing(claims, nodes, places) == [] and len(places) == 1 + 32 + 4
    assert sum(claim.replicas * claim.gpus for claim in claims) == 64


@pytest.mark.parametrize("name", ['we"ird', "a: b", "# c", "null", "日本"])
def test_what_yaml_would_read_otherwise_is_quoted(name: str) -> None:
    raw = yaml.safe_load(text_of(served_model_name=name, model=name))
    assert raw["applications"][0]["deployments"][0]["user_config"]["served-model-name"] == [name]
    assert raw["applications"][0]["args"]["model"].endswith(f"/{name}")


@pytest.mark.parametrize(("name", "value"), [("gpus", "0,1"), ("cpus", "auto"), ("keys", "keys")])
def test_what_a_cluster_decides_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"--{name}: not for a cluster"):
        text_of(**{name: value})


def test_a_role_without_its_other_half_is_refused() -> None:
    with pytest.raises(ConfigError, match="a decode worker needs at least one prefill worker"):
        text_of(prefill="0")


def scaling_of(text: str) -> dict[str, Any]:
    """The autoscaling_config of each deployment that has one."""
    deployments = yaml.safe_load(text)["applications"][0]["deployments"]
    return {
        deployment["name"]: deployment["autoscaling_config"]
        for deployment in deployments
        if "autoscaling_config" in deployment
    }


def test_no_role_grows_unless_it_is_said() -> None:
    assert scaling_of(text_of()) == {} and "num_replicas: 1" in text_of()


def test_a_role_grows_from_its_number_to_its_most() -> None:
    scaling = scaling_of(
        text_of(prefill="2", prefill_max="4", decode_max="6", target_ttft_ms="500", target_itl_ms="40")
    )
    for name, fewest, most, aims in (
        ("Prefill", 2, 4, {"kv": 0.8, "queued_tokens": 8192, "ttft_ms": 500}),
        ("Decode", 1, 6, {"kv": 0.8, "queued_tokens": 8192, "itl_ms": 40}),
    ):
        policy = {"policy_function": "deploy.ray.scaling:ByLoad", "policy_kwargs": aims}
        delays = {"upscale_delay_s": 30, "downscale_delay_s": 600}
        assert scaling[name] == {"min_replicas": fewest, "max_replicas": most, **delays, "policy": policy}


def test_one_role_may_grow_alone() -> None:
    text = text_of(unified="1", unified_max="3", target_kv_percent="7", target_queued_tokens="100", target_itl_ms="9")
    scaling = scaling_of(text)
    assert list(scaling) == ["Unified"] and text.count("num_replicas: 1") == 2
    assert scaling["Unified"]["policy"]["policy_kwargs"] == {"kv": 0.07, "queued_tokens": 100, "itl_ms": 9}


def test_what_is_written_is_what_a_plan_and_serve_read() -> None:
    text = text_of(decode_max="6", target_itl_ms="40")
    assert read_cluster(yaml.safe_load(text), KNOWN).claims[2] == Claim("Decode", 1, 1, 0, extra=5)
    policy = scaling_of(text)["Decode"]["policy"]
    assert ByLoad(**policy["policy_kwargs"]).aims == {"kv": 0.8, "queued_tokens": 8192, "ttft_ms": None, "itl_ms": 40}
    assert [name for name, _, _, _ in AIMS.values()] == [*FIGURES]
    serve = pytest.importorskip("ray.serve.schema", reason="the extra `ray` is not installed")
    (application,) = serve.ServeDeploySchema(**yaml.safe_load(text)).applications
    scaling = application.deployments[2].autoscaling_config
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (1, 6)
    schema = serve.DeploymentSchema(name="Decode", autoscaling_config=scaling_of(text)["Decode"])
    assert schema.autoscaling_config == scaling
    config_of = pytest.importorskip("ray.serve.config", reason="the extra `ray` is not installed")
    assert config_of.AutoscalingConfig(**scaling).policy.get_policy()(**policy["policy_kwargs"]).aims["itl_ms"] == 40


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"prefill": "3", "prefill_max": "2"}, "--prefill-max: got 2, expected at least --prefill 3"),
        ({"decode_max": "0"}, "--decode-max: got 0, expected at least --decode 1"),
        ({"unified_max": "2"}, "--unified-max: got 2, expected --unified of at least 1 beside it"),
        ({"target_ttft_ms": "9"}, "--target-ttft-ms: got 9, expected --prefill-max or --unified-max beside it: no"),
        ({"decode_max": "2", "target_ttft_ms": "9"}, "--target-ttft-ms: got 9, expected --prefill-max or"),
        ({"prefill_max": "2", "target_itl_ms": "9"}, "--target-itl-ms: got 9, expected --decode-max or --unified-max"),
        ({"target_kv_percent": "80"}, "--target-kv-percent: got 80, expected --prefill-max or --decode-max or"),
        ({"target_queued_tokens": "5"}, "--target-queued-tokens: got 5, expected --prefill-max or --decode-max or"),
        ({"decode_max": "257"}, "--decode-max: got 257, expected an integer from 0 to 256"),
        ({"decode_max": "2", "target_kv_percent": "101"}, "--target-kv-percent: got 101, expected an integer"),
    ],
)  # fmt: skip
def test_what_cannot_grow_is_refused(flags: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        text_of(**flags)
    assert raised.value.message.startswith(said)
