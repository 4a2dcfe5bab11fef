"""What `baton ray manifest` writes for KubeRay, and the files in deploy/kuberay/."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest

pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")
import yaml

from deploy.cli import main
from tests.deploy.ray.head_node import PROJECT

FOLDER = PROJECT / "deploy/kuberay"
MADE = {  # file: the flags of `baton ray config`, and the words of `baton ray manifest`
    "1-host.yaml": ("", "1"),
    "2-hosts.yaml": ("--device cuda", "2"),
    "2-hosts-cluster.yaml": ("--device cuda", "2 cluster"),
    "8-hosts-of-8-gpus.yaml": (
        "--device cuda --prefill 32 --decode 4 --decode-dp-size 8 --enable-dp-attention",
        "8 service",
    ),
}


def fields(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """The schema of an object with these fields and no others."""
    properties = {**required, **optional}
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


def list_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema, "minItems": 1}


def map_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": schema}


# Names, types and required fields of ray.io/v1 as its CRD has them (KubeRay's Helm chart), and of Kubernetes' own pods
# and services, as far as Baton uses them.
TEXT, NUMBER, YES = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
QUANTITY = {"type": "string", "pattern": r"^[0-9]+([.][0-9]+)?([KMGTPE]i|[mkMGTPE])?$"}
METADATA = fields({}, name=TEXT, labels=map_of(TEXT))
CONTAINER = fields(
    {"name": TEXT},
    image=TEXT,
    env=list_of(fields({"name": TEXT}, value=TEXT)),
    ports=list_of(fields({"containerPort": NUMBER}, name=TEXT)),
    resources=fields({}, requests=map_of(QUANTITY), limits=map_of(QUANTITY)),
    volumeMounts=list_of(fields({"mountPath": TEXT, "name": TEXT}, readOnly=YES)),
)
CLAIM = fields({"claimName": TEXT}, readOnly=YES)
VOLUME = fields({"name": TEXT}, emptyDir=fields({}, medium=TEXT), persistentVolumeClaim=CLAIM)
POD = fields({"containers": list_of(CONTAINER)}, volumes=list_of(VOLUME), terminationGracePeriodSeconds=NUMBER)
TEMPLATE = fields({}, metadata=METADATA, spec=POD)
CLUSTER = fields(
    {"headGroupSpec": fields({"template": TEMPLATE}, rayStartParams=map_of(TEXT))},
    rayVersion=TEXT,
    authOptions=fields({}, mode={"enum": ["disabled", "token"]}),
    workerGroupSpecs=list_of(
        fields(
            {"groupName": TEXT, "minReplicas": NUMBER, "maxReplicas": NUMBER, "template": TEMPLATE},
            replicas=NUMBER,
            rayStartParams=map_of(TEXT),
        )
    ),
)
SPECS = {"RayCluster": CLUSTER, "RayService": fields({}, serveConfigV2=TEXT, rayClusterConfig=CLUSTER)}
SERVICE = fields({}, selector=map_of(TEXT), ports=list_of(fields({"port": NUMBER}, name=TEXT)))


def made(folder: Path, capsys: pytest.CaptureFixture[str], flags: str, words: str, model: str = "/models/model") -> str:
    assert main(["ray", "config", "--model", model, *flags.split()]) == 0
    file = folder / "baton.yaml"
    file.write_text(capsys.readouterr().out)
    assert main(["ray", "manifest", str(file), *words.split()]) == 0
    return capsys.readouterr().out


def test_a_name_at_a_hub_is_no_volume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at_hub = cluster_of(made(tmp_path, capsys, "--revision v1", "1", "org/tiny"))
    claims = [
        [volume["name"] for volume in group["template"]["spec"]["volumes"]]
        for cluster in (at_hub, cluster_of(made(tmp_path, capsys, "", "1")))
        for group in cluster["workerGroupSpecs"]
    ]
    assert claims == [["shm"], ["shm"], ["shm", "models"], ["shm", "models"]]


def cluster_of(text: str) -> dict[str, Any]:
    spec = next(yaml.safe_load_all(text))["spec"]
    config: dict[str, Any] = spec.get("rayClusterConfig", spec)
    return config


@pytest.mark.parametrize("name", MADE)
def test_the_files_are_what_the_command_writes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (FOLDER / name).read_text() == made(tmp_path, capsys, *MADE[name])


@pytest.mark.parametrize("name", MADE)
def test_every_field_is_one_of_kuberay_and_kubernetes(name: str) -> None:
    ours, service = yaml.safe_load_all((FOLDER / name).read_text())
    assert (ours["apiVersion"], service["apiVersion"], service["kind"]) == ("ray.io/v1", "v1", "Service")
    for document, spec in ((ours, SPECS[ours["kind"]]), (service, SERVICE)):
        whole = fields({"apiVersion": TEXT, "kind": TEXT, "metadata": METADATA, "spec": spec})
        jsonschema.Draft202012Validator(whole).validate(document)


@pytest.mark.parametrize("name", MADE)
def test_what_one_part_names_another_one_has(name: str) -> None:
    ours, service = yaml.safe_load_all((FOLDER / name).read_text())
    cluster = ours["spec"].get("rayClusterConfig", ours["spec"])
    head, workers = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert {port["name"] for port in head["template"]["spec"]["containers"][0]["ports"]} >= {"gcs-server", "dashboard"}
    for group in (head, *workers):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    gateway = workers[0]["template"]
    assert service["spec"]["selector"].items() <= gateway["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    assert port["port"] in {known["containerPort"] for known in gateway["spec"]["containers"][0]["ports"]}


def test_a_pod_may_leave_for_longer_than_its_holders_may_take() -> None:
    for name in MADE:
        for group in cluster_of((FOLDER / name).read_text())["workerGroupSpecs"]:
            pod = group["template"]["spec"]
            variables = {variable["name"]: variable["value"] for variable in pod["containers"][0]["env"]}
            drain_s = int(variables["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
            assert pod["terminationGracePeriodSeconds"] > drain_s > 2 * 30 + 2 * 15


def test_it_follows_how_long_processes_may_leave(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, capsys, "", "1")
    file = tmp_path / "baton.yaml"
    file.write_text(file.read_text().replace("    args: ", "    args:\n      drain_s: 600 #"))
    assert main(["ray", "manifest", str(file), "1"]) == 0
    pod = cluster_of(capsys.readouterr().out)["workerGroupSpecs"][1]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 2 * 600


def test_another_application_of_the_file_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, capsys, "", "1")
    file = tmp_path / "baton.yaml"
    other = {"name": "other", "import_path": "other:app", "deployments": [{"name": "Gateway"}]}
    said = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**said, "applications": [other, *said["applications"]]}))
    assert main(["ray", "manifest", str(file), "1"]) == 0
    config = next(yaml.safe_load_all(capsys.readouterr().out))["spec"]["serveConfigV2"]
    first, second = yaml.safe_load(config)["applications"]
    assert first == other
    assert second["deployments"][0]["ray_actor_options"]["resources"] == {"baton_gateway": 1}


def test_the_name_is_one_that_kubernetes_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, capsys, "", "1")
    file = tmp_path / "baton.yaml"
    file.write_text(file.read_text().replace("name: baton", "name: My_App"))
    assert main(["ray", "manifest", str(file), "1"]) == 2
    assert "name of the application: got 'My_App', expected at most 42 small letters" in capsys.readouterr().err


def test_the_deployed_file_is_the_one_that_was_given_with_proxies_and_a_pod_for_the_gateway(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = made(tmp_path, capsys, "--decode 2", "3")
    given = yaml.safe_load((tmp_path / "baton.yaml").read_text())
    deployed = yaml.safe_load(next(yaml.safe_load_all(text))["spec"]["serveConfigV2"])
    gateway = given["applications"][0]["deployments"][0]
    gateway["ray_actor_options"]["resources"] = {"baton_gateway": 1}
    changed = {"proxy_location": "EveryNode", "http_options": {"host": "0.0.0.0", "port": 8001}}
    assert deployed == {**given, **changed}
    params = cluster_of(text)["workerGroupSpecs"][0]["rayStartParams"]
    assert yaml.safe_load(yaml.safe_load(params["resources"])) == {"baton_gateway": 1}, "a shell takes the outer quotes"


@pytest.mark.parametrize(
    ("flags", "pods", "cpu", "gpu"),
    [
        ("", "1", "3", None),
        ("", "2", "2", None),
        ("--prefill 3 --decode 2", "2", "4", None),
        ("--decode-max 3", "1", "5", None),
        ("--device cuda --prefill 3", "2", "3", "2"),
        ("--device cuda --decode-dp-size 4 --enable-dp-attention", "2", "5", "4"),
    ],
)
def test_workers_fit_into_the_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str, pods: str, cpu: str, gpu: str | None
) -> None:
    compute = cluster_of(made(tmp_path, capsys, flags, pods))["workerGroupSpecs"][1]
    limits = compute["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert (compute["replicas"], limits["cpu"], limits.get("nvidia.com/gpu")) == (int(pods), cpu, gpu)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("3", "ray manifest: got 3 pods, expected 1 to 2, the number of workers"),
        ("0", "ray manifest: got 0 pods, expected 1 to 2"),
        ("1 pod", "ray manifest: got 'pod', expected one of service, cluster"),
    ],
)
def test_a_wrong_word_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    main(["ray", "config"])
    file = tmp_path / "baton.yaml"
    file.write_text(capsys.readouterr().out)
    assert main(["ray", "manifest", str(file), *words.split()]) == 2
    assert capsys.readouterr().err.startswith(f"baton: error: {said}")


def test_the_image_has_the_python_and_the_packages_that_are_tested() -> None:
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    assert "FROM python:3.12-slim" in lines
    assert any("-c constraints.txt '.[ray,gpu]'" in line for line in lines)
    assert any("wget" in line for line in lines), "KubeRay's probes call it"
