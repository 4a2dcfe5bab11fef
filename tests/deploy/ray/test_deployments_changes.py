"""What is lost, changed and wrong on a real Ray cluster of one node: who comes back, and what else is left alone."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest

pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")
import yaml

from deploy.ray.config_text import POLICY
from testkit.reference import Reference, reference
from testkit.roles import role_of
from tests.deploy.ray.asking import check_tokens, flags_of, members, ready, streamed, until
from tests.deploy.ray.head_node import PATIENCE_S, HeadNode, free_ports, head_node
from tests.processes import command_line
from tests.selecting import first

pytestmark = [pytest.mark.slow, pytest.mark.broad]


class Deployed:
    """A pair of a tiny model on a cluster, by a file that tests change."""

    def __init__(self, cluster: HeadNode, known: Reference) -> None:
        self.cluster = cluster
        (self.port,) = free_ports(1)
        self.url = f"http://{cluster.host}:{self.port}"
        self.flags = flags_of(known, self.port)
        self.file = self.written()

    def written(self, *flags: str) -> dict[str, Any]:
        """What `baton ray config` writes."""
        text = self.cluster.say("baton", "ray", "config", *self.flags, *flags)[1]
        raw: dict[str, Any] = yaml.safe_load(text)
        return raw

    @property
    def application(self) -> dict[str, Any]:
        first: dict[str, Any] = self.file["applications"][0]
        return first

    def deployment(self, name: str) -> dict[str, Any]:
        named: dict[str, Any] = next(listed for listed in self.application["deployments"] if listed["name"] == name)
        return named

    def deploy(self) -> None:
        path = self.cluster.folder / "baton.yaml"
        path.write_text(yaml.safe_dump(self.file))
        status, text = self.cluster.say("serve", "deploy", str(path))
        assert status == 0, text

    def pids(self) -> dict[str, set[int]]:
        """The processes of each role."""
        roles = ("gateway", "prefill", "decode")
        role_of_pid = {process.pid: role_of(command_line(process)) for process in self.cluster.ours()}
        return {role: {pid for pid, its in role_of_pid.items() if its == role} for role in roles}

    def joined(self, **counts: int) -> bool:
        """Whether so many processes of each role run, and the gateway has admitted these and no others."""
        wanted, running = {"gateway": 1, "prefill": 1, "decode": 1, **counts}, self.pids()
        admitted = all(members(self.url, role) == running[role] for role in ("prefill", "decode"))
        return admitted and {role: len(pids) for role, pids in running.items()} == wanted and ready(self.url)

    def said(self) -> str:
        """What `serve status` prints of applications and deployments, in one line; "" while Serve does not answer.

        It is read where that command reads it: a process that imports Ray, again and again, slows what is waited for.
        """
        variables = self.cluster.variables
        answer = httpx.get(
            f"{variables['RAY_DASHBOARD_ADDRESS']}/api/serve/applications/",
            headers={"authorization": f"Bearer {variables['RAY_AUTH_TOKEN']}"},
            timeout=PATIENCE_S,
        )
        applications = answer.json()["applications"] if answer.status_code == 200 else {}
        deployments = {name: each for found in applications.values() for name, each in found["deployments"].items()}
        told = [f"{name} {each['status']} {each['message']}" for name, each in (applications | deployments).items()]
        return " ".join(" ".join(told).split())


@pytest.fixture(scope="module")
def known() -> Reference:
    return reference("llama")


@pytest.fixture(scope="module")
def pair(known: Reference) -> Iterator[Deployed]:
    with head_node(num_cpus=5) as cluster:
        deployed = Deployed(cluster, known)
        deployed.deploy()
        until(deployed.joined, cluster)
        yield deployed


def wait_for(pair: Deployed, **counts: int) -> None:
    until(lambda: pair.joined(**counts), pair.cluster)


def kill_holder(pair: Deployed, role: str) -> dict[str, set[int]]:
    """Kills the holder of a role, and returns the processes of before. The process that it held ends with it."""
    before = pair.pids()
    child = pair.cluster.ours_of(role)
    holder = child.parent()
    assert holder is not None
    holder.kill()
    assert not psutil.wait_procs([child], PATIENCE_S)[1]
    until(lambda: pair.pids()[role] and not pair.pids()[role] & before[role], pair.cluster)
    return before


def test_a_holder_that_is_killed_takes_its_process_along_and_is_replaced(pair: Deployed, known: Reference) -> None:
    before = kill_holder(pair, "decode")
    wait_for(pair)
    check_tokens(pair.url, known)
    after = pair.pids()
    assert (after["gateway"], after["prefill"]) == (before["gateway"], before["prefill"])


def test_workers_follow_a_gateway_that_was_replaced(pair: Deployed, known: Reference) -> None:
    before = kill_holder(pair, "gateway")
    wait_for(pair)
    check_tokens(pair.url, known)
    after = pair.pids()
    assert not any(after[role] & before[role] for role in after), "it has another key and another control port"


def test_a_flag_restarts_the_processes_of_its_deployment_alone(pair: Deployed, known: Reference) -> None:
    before = pair.pids()
    holder = pair.cluster.ours_of("prefill").parent()
    pair.deployment("Prefill")["user_config"]["chunked-prefill-size"] = 32
    pair.deploy()
    until(lambda: pair.pids()["prefill"] and not pair.pids()["prefill"] & before["prefill"], pair.cluster)
    wait_for(pair)
    check_tokens(pair.url, known)
    after = pair.pids()
    assert (after["gateway"], after["decode"]) == (before["gateway"], before["decode"])
    prefill = pair.cluster.ours_of("prefill")
    assert prefill.parent() == holder and '"chunked_prefill_size": 32' in " ".join(prefill.cmdline())


def test_counts_go_up_and_down(pair: Deployed, known: Reference) -> None:
    before = pair.pids()
    for count in (2, 1):
        pair.deployment("Decode")["num_replicas"] = count
        pair.deploy()
        wait_for(pair, decode=count)
        check_tokens(pair.url, known)
        assert all(pair.pids()[role] == before[role] for role in ("gateway", "prefill"))


@pytest.mark.full
def test_load_makes_a_worker_more_and_idleness_takes_it_away(pair: Deployed, known: Reference) -> None:
    """By the file that `baton ray config` writes, with an aim that any stream exceeds, and without its delays. All
    streams are answered in full. Serve starts everything anew when a policy comes or goes."""
    fixed = pair.file
    pair.file = pair.written("--decode-max", "2", "--target-kv-percent", "1")
    scaling = pair.deployment("Decode")["autoscaling_config"]
    assert (scaling["max_replicas"], scaling["policy"]["policy_function"]) == (2, POLICY)
    scaling |= {"upscale_delay_s": 0, "downscale_delay_s": 2, "metrics_interval_s": 1, "look_back_period_s": 2}

    def deploy() -> None:
        before = pair.pids()
        pair.deploy()
        until(lambda: not any(pids & before[role] for role, pids in pair.pids().items()), pair.cluster)
        wait_for(pair)

    deploy()
    is_enough, answers = threading.Event(), list[int]()

    def ask() -> None:
        while not is_enough.is_set():
            answers.append(len(streamed(pair.url, known.prompts[0], 400)))

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        wait_for(pair, decode=2)
    finally:
        is_enough.set()
        for client in clients:
            client.join()
    assert set(answers) == {400}
    wait_for(pair, decode=1)
    pair.file = fixed
    deploy()
    check_tokens(pair.url, known)


def test_serves_controller_may_die(pair: Deployed, known: Reference) -> None:
    before = pair.pids()
    node = psutil.Process(pair.cluster.process.pid)
    (controller,) = [
        child for child in node.children(recursive=True) if "ServeController" in " ".join(command_line(child))
    ]
    controller.kill()
    psutil.wait_procs([controller], PATIENCE_S)
    check_tokens(pair.url, known)
    until(lambda: "RUNNING" in pair.said(), pair.cluster)
    assert pair.pids() == before


def no_model(_pair: Deployed, wrong: Deployed) -> str:
    wrong.application["args"]["model"] = "/no/such/model"
    return "args.model: folder '/no/such/model' does not exist"


def unknown_argument(_pair: Deployed, wrong: Deployed) -> str:
    wrong.application["args"]["modell"] = "x"
    return "args: unknown key 'modell', expected one of model, revision, roles"


def unknown_flag(_pair: Deployed, wrong: Deployed) -> str:
    wrong.deployment("Decode")["user_config"]["page-sise"] = 8
    return "user_config of Decode: unknown key 'page-sise', did you mean 'page-size'?"


def port_in_use(pair: Deployed, wrong: Deployed) -> str:
    port = pair.deployment("Gateway")["user_config"]["port"]
    wrong.deployment("Gateway")["user_config"]["port"] = port
    return f"port in user_config of Gateway: {port} on {pair.cluster.host} is in use by another process"


def hidden_package(pair: Deployed, wrong: Deployed) -> str:
    folder = pair.cluster.folder / "work"
    (folder / "worker").mkdir(parents=True)
    (folder / "worker/__init__.py").write_text("")
    wrong.application["runtime_env"] = {"working_dir": f"local://{folder}"}
    return f"the package 'worker' comes from {folder}"


def no_claim(_pair: Deployed, wrong: Deployed) -> str:
    wrong.deployment("Prefill")["ray_actor_options"] = {"num_cpus": 0}
    return "ray_actor_options of Prefill: got num_cpus 0 and num_gpus 0, expected a claim of either"


SPOILERS = (unknown_flag, hidden_package, no_model, no_claim, unknown_argument, port_in_use)


@pytest.mark.parametrize("spoil", first(1, SPOILERS, num_broad=0))
def test_what_is_wrong_is_in_serve_status(
    known: Reference, pair: Deployed, spoil: Callable[[Deployed, Deployed], str]
) -> None:
    """The other application goes on, and nothing of the wrong one is left behind."""
    before = pair.pids()
    wrong = Deployed(pair.cluster, known)
    wrong.application["name"] = "wrong"
    for deployment in wrong.application["deployments"]:
        deployment["ray_actor_options"] = {"num_cpus": 0.1}
    words = spoil(pair, wrong)
    pair.file["applications"].append(wrong.application)
    pair.deploy()
    try:
        until(lambda: words in pair.said(), pair.cluster)
    finally:
        pair.file["applications"].remove(wrong.application)
        pair.deploy()
    until(lambda: (said := pair.said()) and "wrong" not in said, pair.cluster)
    until(lambda: pair.pids() == before, pair.cluster)
    check_tokens(pair.url, known)


@pytest.mark.parametrize("deployment", first(1, ["Gateway", "Prefill"], num_broad=0))
def test_a_wrong_flag_of_what_runs_is_refused_and_what_runs_goes_on(
    deployment: str, pair: Deployed, known: Reference
) -> None:
    """Serve would end a replica that raises, and start none that serves: without a gateway nobody is served."""
    before, flags = pair.pids(), pair.deployment(deployment)["user_config"]
    words = f"keeps the flags that it has: user_config of {deployment}: unknown key 'page-sise'"
    flags["page-sise"] = 8
    pair.deploy()
    until(lambda: words in pair.cluster.say("baton", "ray", "status")[1], pair.cluster)
    check_tokens(pair.url, known)
    del flags["page-sise"]
    pair.deploy()
    until(lambda: words not in pair.cluster.say("baton", "ray", "status")[1], pair.cluster)
    check_tokens(pair.url, known)
    assert pair.pids() == before
