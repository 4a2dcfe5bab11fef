import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from deploy import drafts
from deploy.layout import (
    Plan,
    as_large,
    at_addresses,
    check_counts,
    gateway_plan,
    gpu_of,
    serve_plan,
    threads_per_worker,
    worker_plan,
)
from deploy.options import options_for
from deploy.serve import check_exposed, check_keys, first_name
from model import inputs
from model.kv_sizing import KvBudget, KvSize, choose_kv_size
from protocol.errors import ConfigError
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import Role
from runtime.options import option_name
from runtime.settings import GatewaySettings, Group, HttpLimits, WorkerSettings
from tests.deploy.configs import MODEL, config, settings_of


def test_keys_do_not_make_nixl_safe_where_others_reach_it() -> None:
    flags = {"role": "prefill", "keys": "folder", "transfer-backend": "nixl"}
    check_exposed(config("worker", **flags), "127.0.0.1", "--host")
    check_exposed(config("worker", **flags | {"trust-network": "true"}), "10.0.0.5", "--host")
    check_exposed(config("worker", **flags | {"transfer-backend": "zmq"}), "10.0.0.5", "--host")
    with pytest.raises(
        ConfigError, match=r"--host: '10.0.0.5' can be reached .* nixl opens ports there that check no keys"
    ):
        check_exposed(config("worker", **flags), "10.0.0.5", "--host")


def test_the_file_of_keys_is_read_before_anything_starts(tmp_path: Path) -> None:
    check_keys(config("gateway"), for_gateway=True)
    with pytest.raises(ConfigError, match=r"--api-key-file .*No such file"):
        check_keys(config("gateway", api_key_file=str(tmp_path / "none")), for_gateway=True)


@pytest.fixture
def draft(tmp_path: Path) -> Callable[..., Plan]:
    """A plan with the draft of a folder whose config.json has `num_layers` draft layers, or with those layers."""

    def plan(num_layers: int = 0, **flags: str) -> Plan:
        own = {"num_nextn_predict_layers": num_layers} if num_layers else {}
        (tmp_path / "config.json").write_text(json.dumps(own))
        eagle = {"speculative_algorithm": "eagle", "speculative_draft_model_path": str(tmp_path)}
        mtp = {"speculative_algorithm": "mtp", "context_length": "64"}
        is_mtp = num_layers or "speculative_algorithm" in flags
        typed = config("serve", **({**mtp, **flags} if is_mtp else {**eagle, **flags}))
        return serve_plan(typed, tmp_path if is_mtp else MODEL, "story", cores=2)

    return plan


@pytest.mark.parametrize("num_layers", [0, 2])
def test_a_draft_that_is_not_named_may_be_in_the_models_own_folder(
    num_layers: int, draft: Callable[..., Plan], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"-draft-model-path is missing: .* eagle needs the folder of a") as caught:
        draft(num_layers, speculative_algorithm="eagle", model=str(tmp_path))
    assert ("own draft layers (num_nextn_predict_layers is 2)" in caught.value.message) is bool(num_layers)


def test_both_workers_of_a_pair_have_the_draft(draft: Callable[..., Plan], tmp_path: Path) -> None:
    drafts = [(worker.speculative_algorithm, worker.speculative_draft_model_path) for worker in draft().worker_settings]
    assert drafts == [("eagle", str(tmp_path))] * 2


@pytest.mark.parametrize(
    "flags, wanted",
    [
        ({}, (2, 9, False)),
        ({"speculative_num_steps": "1"}, (2, 3, False)),
        ({"speculative_eagle_topk": "8", "speculative_num_steps": "9"}, (8, 64, False)),
        ({"speculative_num_draft_tokens": "15", "speculative_adaptive": "false"}, (2, 15, False)),
        ({"speculative_eagle_topk": "1"}, (1, None, True)),
    ],
)
def test_a_tree_has_a_size_unless_one_is_asked_for(
    flags: dict[str, str], wanted: tuple[int, int | None, bool], draft: Callable[..., Plan]
) -> None:
    for worker in draft(**{"speculative_eagle_topk": "2", **flags}).worker_settings:
        tree = worker.speculative_eagle_topk, worker.speculative_num_draft_tokens, worker.speculative_adaptive
        assert tree == wanted


def test_a_tree_may_be_as_large_as_a_mask() -> None:
    assert drafts.TREE_SLOTS == inputs.TREE_SLOTS


@pytest.mark.parametrize(
    "num_layers,flags,expected",
    [
        (0, {"context_length": "2", "speculative_num_steps": "1"}, 1),  # one proposal fits every context
        (1, {}, 4),
        (1, {"speculative_num_steps": "7"}, 7),
        (3, {}, 3),
        (3, {"speculative_num_steps": "2"}, 2),
        (6, {}, 4),
    ],
)
def test_several_draft_layers_propose_a_token_each(
    draft: Callable[..., Plan], num_layers: int, flags: dict[str, str], expected: int
) -> None:
    assert {worker.speculative_num_steps for worker in draft(num_layers, **flags).worker_settings} == {expected}


@pytest.mark.parametrize(
    "num_layers,flags,says",
    [
        (2, {"speculative_num_steps": "3"}, r"--speculative-num-steps: got 3, expected at most 2, the draft layers of"),
        (0, {"speculative_algorithm": "mtp"}, r"^--speculative-algorithm: .* model has no draft layers \(num_nextn"),
    ],
)
def test_more_proposals_than_draft_layers_are_refused(
    draft: Callable[..., Plan], num_layers: int, flags: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        draft(num_layers, **flags)


def test_one_prefill_and_one_decode_by_default() -> None:
    plan = serve_plan(config("serve"), MODEL, "story", cores=2)
    workers = plan.workers("tcp://127.0.0.1:40123")
    assert [spec.name for spec in workers] == ["prefill-0", "decode-0"]
    assert plan.gateway.name == "gateway"
    assert plan.gateway.command[:4] == (sys.executable, "-P", "-m", "gateway")
    assert workers[0].command[:5] == (sys.executable, "-P", "-m", "deploy.worker", "--settings")
    settings = WorkerSettings.from_json(workers[1].command[5])
    assert settings.role is Role.DECODE
    assert settings.gateway == "tcp://127.0.0.1:40123"
    assert settings.model == "/models/story"
    assert settings.workers_on_host == 2
    assert settings.threads == 1


def test_settings_follow_the_flags() -> None:
    typed = config(
        "serve", prefill="0", decode="0", unified="2", page_size="1", chunked_prefill_size="0", context_length="128",
        disable_overlap_schedule="true", max_total_tokens="512", dtype="float32", device="cpu", port="0",
        max_running_requests="3", pairing="round_robin", log_level="debug", host="0.0.0.0",
        attention_backend="varlen",
    )  # fmt: skip
    plan = serve_plan(typed, MODEL, "tale", cores=8)
    gateway = GatewaySettings.from_json(plan.gateway.command[-1])
    assert gateway == GatewaySettings(
        host="0.0.0.0", port=0, control="tcp://127.0.0.1:0", model="/models/story", served_model_name=("tale",),
        context_length=128, pairing="round_robin", log_level="debug",
    )  # fmt: skip
    assert plan.worker_settings[1] == WorkerSettings(
        worker_id="unified-1", role=Role.UNIFIED, gateway="", model="/models/story", device="cpu", dtype="float32",
        page_size=1, max_total_tokens=512, max_running_requests=3, chunked_prefill_size=0, context_length=128,
        disable_overlap_schedule=True, host="127.0.0.1", workers_on_host=2, threads=4, log_level="debug",
        attention_backend="varlen",
    )  # fmt: skip


def test_names_keys_and_origins_reach_the_gateway_and_no_key_does() -> None:
    typed = config(
        "serve", served_model_name="tale,fable", model="some/folder", api_key_file="keys.txt",
        allowed_origins="https://a.example,http://localhost:3000",
    )  # fmt: skip
    settings = GatewaySettings.from_json(serve_plan(typed, MODEL, "tale", cores=2).gateway.command[-1])
    assert settings.served_model_name == ("tale", "fable")
    assert settings.model_as_typed == "some/folder" and settings.model == "/models/story"
    assert settings.api_key_file == str(Path("keys.txt").absolute())
    assert settings.allowed_origins == ("https://a.example", "http://localhost:3000")
    assert config("serve", allowed_origins="*")["allowed-origins"] == ("*",)


@pytest.mark.parametrize(
    "origin", ["example.com", "https://a.example/", "https://a.example/x", "https://", "null", "HTTPS://a"]
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"--allowed-origins: got .*, expected \* or an origin such as https"):
        gateway_plan(config("gateway", allowed_origins=f"*,{origin}"), MODEL, "story")


def test_the_first_name_is_told() -> None:
    assert first_name(config("serve", served_model_name="tale,fable"), MODEL) == "tale"
    assert first_name(config("serve"), MODEL) == "story"


def test_a_folder_that_the_names_have_swallowed_is_not_served_as_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`baton serve --served-model-name tale models/story` would serve the bundled model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="--served-model-name: got 'mine', which is the folder of a model") as caught:
        first_name(config("serve", served_model_name="tale,mine"), MODEL)
    assert caught.value.param == "served-model-name"
    assert first_name(config("serve", served_model_name="tale,empty"), MODEL) == "tale"
    assert first_name(config("serve", served_model_name="mine"), MODEL) == "mine"
    assert first_name(config("serve", served_model_name="tale,mine", model="mine"), MODEL) == "tale"


def test_every_limit_has_a_flag_of_its_own() -> None:
    flags = [option for option in options_for("gateway") if option.group == Group.LIMITS]
    typed = {option.name: str(101 + index) for index, option in enumerate(flags)}
    spec = gateway_plan(config("gateway", **typed), MODEL, "story")
    limits = asdict(GatewaySettings.from_json(spec.command[-1]).limits)
    assert {option_name(field): float(value) for field, value in limits.items()} == {
        name: float(text) for name, text in typed.items()
    }
    defaults = GatewaySettings.from_json(gateway_plan(config("gateway"), MODEL, "story").command[-1])
    assert defaults.limits == HttpLimits()


def test_the_environment_bounds_the_threads() -> None:
    plan = serve_plan(config("serve"), MODEL, "story", cores=8)
    for spec in plan.workers("tcp://127.0.0.1:1"):
        assert spec.environment["OMP_NUM_THREADS"] == "4"
        assert spec.environment["OMP_WAIT_POLICY"] == "PASSIVE"
    assert plan.gateway.environment["OMP_NUM_THREADS"] == "1"
    chosen = serve_plan(config("serve", threads="3"), MODEL, "story", cores=8)
    assert chosen.workers("tcp://127.0.0.1:1")[0].environment["OMP_NUM_THREADS"] == "3"


def test_nixl_keeps_to_this_machine_unless_its_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)

    def devices(host: str, **flags: str) -> str | None:
        (spec,) = worker_plan(
            config("worker", role="prefill", gateway="tcp://10.0.0.1:7000", **flags), MODEL, "w", 1, host, cores=2
        )
        return spec.environment.get("UCX_NET_DEVICES")

    backend = {"transfer-backend": "nixl"}
    assert [devices("127.0.0.1"), devices("127.0.0.1", **backend), devices("10.0.0.5", **backend)] == [None, "lo", None]
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_0:1")
    assert devices("127.0.0.1", **backend) == "mlx5_0:1"


@pytest.mark.parametrize("cores, workers, threads", [(1, 1, 1), (2, 2, 1), (2, 4, 1), (8, 3, 2), (16, 1, 16)])
def test_threads_are_an_equal_share(cores: int, workers: int, threads: int) -> None:
    assert threads_per_worker(cores, workers) == threads


@pytest.mark.parametrize("counts", [(1, 1, 0), (0, 0, 1), (2, 3, 1)])
def test_counts_that_make_a_server(counts: tuple[int, int, int]) -> None:
    assert check_counts(*counts) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    "counts, says",
    [
        ((0, 0, 0), "--prefill 0 --decode 0 --unified 0"),
        ((1, 0, 0), "--prefill 1 with --decode 0: a prefill worker needs at least one decode worker"),
        ((0, 2, 1), "--decode 2 with --prefill 0: a decode worker needs at least one prefill worker"),
    ],
)
def test_counts_that_do_not(counts: tuple[int, int, int], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_counts(*counts)
    assert says in caught.value.message


def test_one_worker_alone() -> None:
    typed = config("worker", role="null", gateway="tcp://10.0.0.5:7000", workers_on_host="2")
    (spec,) = worker_plan(typed, MODEL, "unified-a", 1, "10.0.0.6", cores=8)
    settings = WorkerSettings.from_json(spec.command[-1])
    assert spec.name == "unified-a"
    assert (spec.command[3], settings.role) == ("deploy.worker", Role.UNIFIED)
    assert (settings.gateway, settings.host) == ("tcp://10.0.0.5:7000", "10.0.0.6")
    assert (settings.workers_on_host, settings.threads) == (2, 4)


def test_keys_are_found_from_wherever_a_process_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    plan = serve_plan(config("serve", keys="keys/gateway", encrypt_data="true"), MODEL, "story", cores=2)
    gateway = GatewaySettings.from_json(plan.gateway.command[-1])
    assert gateway.keys == str(tmp_path / "keys/gateway") and not gateway.trust_network
    for worker in plan.worker_settings:
        assert (worker.keys, worker.encrypt_data, worker.trust_network) == (gateway.keys, True, False)
    bare = serve_plan(config("serve"), MODEL, "story", cores=2).worker_settings[0]
    assert (bare.keys, bare.encrypt_data, bare.trust_network) == (None, False, False)


def test_trust_in_a_network_is_of_one_command() -> None:
    spec = gateway_plan(config("gateway", trust_network="true"), MODEL, "story")
    assert GatewaySettings.from_json(spec.command[-1]).trust_network
    typed = config("worker", role="decode", gateway="tcp://10.0.0.5:7000", trust_network="true")
    (spec,) = worker_plan(typed, MODEL, "decode-a", 1, "10.0.0.6", cores=8)
    assert WorkerSettings.from_json(spec.command[-1]).trust_network


def test_a_gateway_alone() -> None:
    spec = gateway_plan(config("gateway", control="tcp://0.0.0.0:7000"), MODEL, "story")
    assert json.loads(spec.command[-1])["control"] == "tcp://0.0.0.0:7000"


@pytest.mark.parametrize("http, port", [("http://127.0.0.1:41000", 41000), ("http://[::]:41000", 41000)])
def test_a_gateway_comes_back_to_the_addresses_that_it_announced(http: str, port: int) -> None:
    spec = serve_plan(config("serve", port="0", host="::"), MODEL, "story", cores=2).gateway
    again = at_addresses(spec, http, "tcp://127.0.0.1:42000")
    before, after = (GatewaySettings.from_json(start.command[-1]) for start in (spec, again))
    assert (after.port, after.control) == (port, "tcp://127.0.0.1:42000")
    assert replace(after, port=before.port, control=before.control) == before
    assert (again.name, again.environment, again.command[:-1]) == (spec.name, spec.environment, spec.command[:-1])


@pytest.mark.parametrize("typed", [None, "6000", "30000"])
def test_a_worker_comes_back_with_the_kv_that_it_had(typed: str | None) -> None:
    """Where memory is short: what is free when one starts again is not to be shared with those that have theirs."""
    flags = {} if typed is None else {"max_total_tokens": typed}
    spec = serve_plan(config("serve", **flags), MODEL, "story", cores=2).workers("tcp://127.0.0.1:7000")[1]
    layout = KvLayout.uniform(num_layers=2, num_kv_heads=2, head_dim=16, page_size=16, dtype="float32")

    def size(settings: WorkerSettings, available: int) -> KvSize:
        budget = KvBudget(available, settings.workers_on_host, weight_bytes=0, activation_bytes=0)
        tokens = settings.max_total_tokens
        return choose_kv_size(layout, budget, context_length=5000, max_running_requests=64, max_total_tokens=tokens)

    before, available = WorkerSettings.from_json(spec.command[-1]), 20_000_000
    first = size(before, available)
    (again,) = as_large([spec], {"decode-0": first.num_pages - 1})
    after = WorkerSettings.from_json(again.command[-1])
    others = layout.pool_bytes(first.num_pages)
    assert size(after, available - others).num_pages == first.num_pages
    assert replace(after, max_total_tokens=before.max_total_tokens, workers_on_host=2) == before
    assert (again.name, again.environment, again.command[:-1]) == (spec.name, spec.environment, spec.command[:-1])
    if typed is None:
        assert size(before, available - others // 4).num_pages < first.num_pages


def test_tokenizer_and_template_of_the_gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    typed = config("gateway", tokenizer="texts", chat_template="/x/chat.jinja")
    settings = GatewaySettings.from_json(gateway_plan(typed, MODEL, "story").command[-1])
    assert (settings.tokenizer, settings.chat_template) == (str(tmp_path / "texts"), "/x/chat.jinja")
    bare = GatewaySettings.from_json(gateway_plan(config("gateway"), MODEL, "story").command[-1])
    assert (bare.tokenizer, bare.chat_template) == (None, None)


def test_workers_share_gpus_and_each_ones_memory() -> None:
    plan = serve_plan(config("serve", decode="3"), MODEL, "story", cores=8, gpus=(0, 2))
    shares = {
        worker.worker_id: (worker.device, worker.workers_on_gpu, worker.workers_on_host)
        for worker in plan.worker_settings
    }
    assert shares == {
        "prefill-0": ("cuda:0", 2, 4),
        "decode-0": ("cuda:2", 2, 4),
        "decode-1": ("cuda:0", 2, 4),
        "decode-2": ("cuda:2", 2, 4),
    }
    assert [gpu_of(worker) for worker in plan.worker_settings] == [0, 2, 0, 2]
    own = serve_plan(config("serve"), MODEL, "story", cores=8, gpus=(0, 1, 2)).worker_settings
    assert [(worker.device, worker.workers_on_gpu) for worker in own] == [("cuda:0", 1), ("cuda:1", 1)]


def test_without_gpus_the_device_is_as_typed() -> None:
    for device in ("auto", "cpu"):
        plan = serve_plan(config("serve", device=device), MODEL, "story", cores=2)
        assert [(worker.device, gpu_of(worker)) for worker in plan.worker_settings] == [(device, None)] * 2


def test_a_worker_comes_back_on_its_gpu_and_divides_it_no_more() -> None:
    plan = serve_plan(config("serve", decode="3"), MODEL, "story", cores=8, gpus=(0, 1))
    for spec in plan.workers("tcp://127.0.0.1:7000"):
        before, after = settings_of(spec), settings_of(as_large([spec], {spec.name: 100})[0])
        assert (after.device, before.workers_on_gpu, after.workers_on_gpu) == (before.device, 2, 1)


@pytest.mark.parametrize(
    "flags, gpu, device, workers_on_gpu",
    [
        ({}, None, "auto", 1),
        ({}, 0, "cuda:0", 3),  # who names none may be on the same
        ({"gpus": "all"}, 0, "cuda:0", 3),
        ({"gpus": "1"}, 1, "cuda:1", 1),
        ({"device": "cuda:1"}, 1, "cuda:1", 1),
        ({"gpus": "1", "workers-on-gpu": "2"}, 1, "cuda:1", 2),
    ],
)
def test_one_worker_on_a_gpu(flags: dict[str, str], gpu: int | None, device: str, workers_on_gpu: int) -> None:
    typed = config("worker", role="decode", gateway="tcp://h:1", **{"workers-on-host": "3", **flags})
    gpus = () if gpu is None else (gpu,)
    settings = settings_of(worker_plan(typed, MODEL, "d", 1, "h", cores=8, gpus=gpus)[0])
    assert (settings.device, settings.workers_on_gpu, settings.workers_on_host) == (device, workers_on_gpu, 3)
