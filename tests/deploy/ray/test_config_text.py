import re
from pathlib import Path

import pytest

from deploy.cli import find_config, parse
from deploy.options import RAY_CONFIG
from deploy.ray.config_file import Claim, read_cluster
from deploy.ray.config_text import config_text
from deploy.ray.flags import read_flags
from deploy.ray.placement import Node, missing, place
from protocol.errors import ConfigError
from tests.deploy.configs import config
from tests.deploy.ray.files import KNOWN

yaml = pytest.importorskip("yaml", reason="the extra `ray` is not installed")


def text_of(**flags: str) -> str:
    return config_text(config(RAY_CONFIG, **flags))


def test_a_file_without_flags_is_a_pair() -> None:
    found = read_cluster(yaml.safe_load(text_of()), KNOWN)
    assert found.application == "baton" and found.arguments.model is None and not found.has_proxies
    assert found.claims == tuple(Claim(name, 1, 1, 0) for name in ("Gateway", "Prefill", "Decode"))


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
    found = read_cluster(raw, KNOWN)
    assert found.arguments.model == str(Path("models/story").absolute())
    assert {claim.deployment: claim.replicas for claim in found.claims} == {
        "Gateway": 1, "Prefill": 3, "Decode": 2, "Unified": 1,
    }  # fmt: skip
    flags = {each["name"]: each["user_config"] for each in raw["applications"][0]["deployments"]}
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
