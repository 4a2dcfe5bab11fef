"""How ranks are named, and how they share what the machine has."""

from dataclasses import replace

import pytest

from deploy.layout import as_large, by_unit, serve_plan, worker_plan
from protocol.errors import ConfigError
from protocol.messages_group import GroupPlace
from tests.deploy.configs import MODEL, config, settings_of

ON = {"enable_dp_attention": "true"}


def test_a_worker_has_a_process_for_each_rank() -> None:
    plan = serve_plan(config("serve", decode="2", decode_dp_size="3", **ON), MODEL, "m", cores=14)
    specs = plan.workers("tcp://127.0.0.1:7000")
    assert {unit: [spec.name for spec in ranks] for unit, ranks in by_unit(specs).items()} == {
        "prefill-0": ["prefill-0"],
        "decode-0": ["decode-0.0", "decode-0.1", "decode-0.2"],
        "decode-1": ["decode-1.0", "decode-1.1", "decode-1.2"],
    }
    assert settings_of(specs[0]).place == GroupPlace("prefill-0", 1, 0, 1) and settings_of(specs[0]).group == ""
    assert settings_of(specs[5]).place == GroupPlace("decode-1", 1, 1, 3)
    assert {(worker.threads, worker.workers_on_host) for worker in plan.worker_settings} == {(2, 7)}


def test_ranks_share_cores() -> None:
    typed = config("serve", prefill="0", decode="0", unified="1", dp_size="3", **ON)
    plan = serve_plan(typed, MODEL, "m", cores=8, cpus=(0, 1, 2, 3, 6))
    assert [spec.cpus for spec in plan.workers("tcp://h:1")] == [(0, 1), (2, 3), (6,)]
    assert [worker.threads for worker in plan.worker_settings] == [2, 2, 1]


@pytest.mark.parametrize(
    "gpus, devices, sharing",
    [
        (range(8), [0, 1, 2, 3, 4], [1, 1, 1, 1, 1]),
        (range(5), [0, 1, 2, 3, 4], [1, 1, 1, 1, 1]),
        (range(2), [0, 1, 0, 1, 0], [3, 2, 3, 2, 3]),
    ],
)
def test_each_rank_has_a_gpu_of_its_own_if_there_are_enough(
    gpus: range, devices: list[int], sharing: list[int]
) -> None:
    typed = config("serve", decode_dp_size="4", **ON)
    workers = serve_plan(typed, MODEL, "m", cores=8, gpus=gpus).worker_settings
    assert [worker.device for worker in workers] == [f"cuda:{number}" for number in devices]
    assert [worker.workers_on_gpu for worker in workers] == sharing


@pytest.mark.parametrize(
    "flags, gpus, sharing, workers",
    [
        ({}, (), [1, 1, 1], 3),
        ({}, (0, 1, 2), [1, 1, 1], 3),
        ({"workers_on_host": "5"}, (0, 1, 2), [3, 3, 3], 5),  # the two others may be on any of them
        ({"workers_on_host": "5", "gpus": "0-2"}, (0, 1, 2), [1, 1, 1], 5),
        ({"device": "cuda:2"}, (2,), [3, 3, 3], 3),
        ({"gpus": "0,1"}, (0, 1), [2, 1, 2], 3),
        ({"gpus": "0,1", "workers_on_gpu": "4"}, (0, 1), [4, 4, 4], 3),
    ],
)
def test_a_worker_alone_starts_all_its_ranks(
    flags: dict[str, str], gpus: tuple[int, ...], sharing: list[int], workers: int
) -> None:
    typed = config("worker", role="decode", gateway="tcp://h:1", dp_size="3", **ON, **flags)
    specs = worker_plan(typed, MODEL, "mine", 3, "10.0.0.6", cores=15, gpus=gpus)
    assert [spec.name for spec in specs] == ["mine.0", "mine.1", "mine.2"] and set(by_unit(specs)) == {"mine"}
    ranks = [settings_of(spec) for spec in specs]
    assert {(rank.workers_on_host, rank.threads, rank.host) for rank in ranks} == {(workers, 15 // workers, "10.0.0.6")}
    assert [rank.workers_on_gpu for rank in ranks] == sharing


def test_ranks_count_as_workers_of_the_host() -> None:
    typed = config("worker", role="decode", gateway="tcp://h:1", dp_size="3", workers_on_host="2", **ON)
    with pytest.raises(ConfigError, match="--workers-on-host: got 2, expected at least 3, since each rank counts"):
        worker_plan(typed, MODEL, "d", 3, "h", cores=2)


def test_a_name_has_room_for_the_ranks() -> None:
    typed = config("worker", role="decode", gateway="tcp://h:1", dp_size="3", **ON)
    assert worker_plan(typed, MODEL, "d" * 126, 3, "h", cores=2)[2].name == "d" * 126 + ".2"
    with pytest.raises(ConfigError, match=r"--worker-id: got 'd.*, expected at most 126 characters, since each rank"):
        worker_plan(typed, MODEL, "d" * 127, 3, "h", cores=2)


def test_an_epoch_is_told_to_a_rank_and_nothing_else_changes() -> None:
    spec = serve_plan(config("serve", dp_size="2", **ON), MODEL, "m", cores=4).workers("tcp://h:1")[1]
    before, after = settings_of(spec), settings_of(spec.in_epoch(7, "/tmp/x"))
    assert (after.group_epoch, after.group_folder) == (7, "/tmp/x")
    assert replace(after, group_epoch=1, group_folder="") == before


def test_ranks_that_come_back_divide_what_their_group_had() -> None:
    """The other workers keep theirs."""
    typed = config("serve", decode_dp_size="3", **ON)
    specs = serve_plan(typed, MODEL, "m", cores=4, gpus=(0, 1)).workers("tcp://h:1")
    pages = {spec.name: 100 + index for index, spec in enumerate(specs)}
    again = [settings_of(spec) for spec in as_large(specs, pages)]
    assert [rank.max_total_tokens for rank in again] == [1600, 1616, 1632, 1648]
    assert [rank.workers_on_host for rank in again] == [1, 3, 3, 3]
    assert [rank.device for rank in again] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert [rank.workers_on_gpu for rank in again] == [1, 2, 1, 2]
