"""Requests go to the workers that have told that they hold their prefix; whatever is told, the answers are the same."""

from pathlib import Path
from typing import Any

import pytest

from gateway.routing.members import WorkerKey
from gateway.routing.prefixes import KnownPrefixes
from protocol.messages_gateway import Heartbeat, Left, Role, Welcome
from protocol.prefixes import HASH_KEY_BYTES, packed, prefix_hashes
from protocol.worker_facts import CacheNews
from testkit.fake_worker import Behaviour, FakeWorker
from tests.gateway.conftest import Setting, running, wait_until

PREFIX = [65 + place % 26 for place in range(256)]


def key_of(worker: FakeWorker) -> WorkerKey:
    return WorkerKey(worker.worker_id, worker.instance)


def hash_key(worker: FakeWorker) -> bytes:
    [welcome] = [message for message in worker.received if isinstance(message, Welcome)]
    return welcome.hash_key


def hashes(worker: FakeWorker, ids: list[int] = PREFIX, salt: str = "") -> tuple[bytes, ...]:
    return tuple(prefix_hashes(hash_key(worker), salt, packed(ids)))


def known(setting: Setting, worker: FakeWorker) -> KnownPrefixes:
    member = setting.gateway.control.membership.find(key_of(worker))
    assert member is not None
    return member.prefixes


async def tell(setting: Setting, worker: FakeWorker, expected: int, **news: Any) -> None:
    """The worker tells, and then the gateway knows `expected` prefixes."""
    await worker.send(Heartbeat(worker.worker_id, worker.instance, worker.stats, cache=CacheNews(**news)))
    await wait_until(lambda: len(known(setting, worker)) == expected)


async def served(setting: Setting, prompt: list[int], **fields: Any) -> tuple[str, str]:
    """(the workers that a request went to, its text)."""
    before = {worker.worker_id: len(worker.assigned) for worker in setting.workers}
    answer = await setting.complete(prompt, max_tokens=3, **fields)
    assert answer.status_code == 200, answer.text
    names = [each.worker_id for each in setting.workers if len(each.assigned) > before[each.worker_id]]
    return "+".join(names), answer.json()["choices"][0]["text"]


@pytest.fixture
async def workers(setting: Setting) -> list[FakeWorker]:
    return [await setting.add(Role.UNIFIED, f"u{number}", max_total_tokens=16_384) for number in range(3)]


async def test_requests_with_a_common_prefix_go_where_it_is_held(setting: Setting, workers: list[FakeWorker]) -> None:
    await tell(setting, workers[1], 4, added=hashes(workers[1]))
    for suffix in range(6):
        assert (await served(setting, [*PREFIX, 70 + suffix]))[0] == "u1"
    others = {(await served(setting, [90 - place, *PREFIX]))[0] for place in range(6)}
    assert others == {"u0", "u1", "u2"}, "a prompt that begins otherwise has no home"


async def test_both_workers_of_a_pair_are_chosen_by_what_they_hold(setting: Setting) -> None:
    prefills = [await setting.add(Role.PREFILL, f"p{number}") for number in range(2)]
    decodes = [await setting.add(Role.DECODE, f"d{number}", prefill=prefills[1]) for number in range(2)]
    await tell(setting, prefills[1], 4, added=hashes(prefills[1]))
    await tell(setting, decodes[0], 3, added=hashes(decodes[0])[:3])
    assert (await served(setting, [*PREFIX, 70]))[0] == "d0"
    assert decodes[0].assigned[-1].prefill == prefills[1].address


async def test_a_prefill_worker_is_known_to_learn_what_it_has_got(setting: Setting) -> None:
    """Nobody tells anything. Where the first request went, the others find its prefix, although it may be late."""
    prefills = [await setting.add(Role.PREFILL, f"p{number}") for number in range(2)]
    decode = await setting.add(Role.DECODE, "d0", prefill=prefills[0])
    for suffix in range(2):
        assert (await served(setting, [*PREFIX, *PREFIX[:200], 70 + suffix]))[0] == "d0"
    [first, second] = [assign.prefill for assign in decode.assigned]
    assert first == second and len(known(setting, prefills[0])) == len(known(setting, prefills[1])) == 0


async def test_another_salt_is_another_prefix(setting: Setting, workers: list[FakeWorker]) -> None:
    await tell(setting, workers[1], 4, added=hashes(workers[1]))
    await tell(setting, workers[2], 4, added=hashes(workers[2], salt="tenant"))
    for suffix in range(4):
        assert (await served(setting, [*PREFIX, 70 + suffix], cache_salt="tenant"))[0] == "u2"
        assert (await served(setting, [*PREFIX, 70 + suffix]))[0] == "u1"


async def test_a_retry_goes_to_the_next_best(setting: Setting, workers: list[FakeWorker]) -> None:
    await tell(setting, workers[1], 4, added=hashes(workers[1]))
    await tell(setting, workers[2], 2, added=hashes(workers[2])[:2])
    workers[1].behaviour = Behaviour(fail_after=1, fail_code="unavailable")
    for suffix in range(3):
        assert (await served(setting, [*PREFIX, 70 + suffix]))[0] == "u1+u2"


async def test_what_was_preempted_begins_again_where_its_prompt_is_held(
    setting: Setting, workers: list[FakeWorker]
) -> None:
    await tell(setting, workers[1], 4, added=hashes(workers[1]))
    workers[1].behaviour = Behaviour(preempt_after=1)
    for suffix in range(3):
        assert (await served(setting, [*PREFIX, 70 + suffix]))[0] == "u1"
        assert workers[1].assigned[-1].resumes


async def test_whatever_is_told_the_answers_are_the_same(setting: Setting, workers: list[FakeWorker]) -> None:
    """What is told may come twice, be lost, or be wrong."""
    prompts = [[*PREFIX[: 40 * each], 70 + each] for each in (0, 3, 5)]
    expected = [(await served(setting, prompt))[1] for prompt in prompts]
    first, *rest = hashes(workers[1])
    for expected_num, news in (
        (3, CacheNews(added=tuple(rest))),
        (3, CacheNews(added=tuple(rest))),
        (3, CacheNews(dropped=(first, b"unknown!"))),
        (4, CacheNews(added=(b"never in",), dropped=(first,))),
        (1, CacheNews(flushed=True, added=(first,))),
    ):
        fields = {"flushed": news.flushed, "added": news.added, "dropped": news.dropped}
        await tell(setting, workers[1], expected_num, **fields)
        assert [(await served(setting, prompt))[1] for prompt in prompts] == expected


async def test_a_worker_that_leaves_is_forgotten(setting: Setting, workers: list[FakeWorker]) -> None:
    await tell(setting, workers[1], 4, added=hashes(workers[1]))
    await workers[1].send(Left("u1", workers[1].instance))
    await wait_until(lambda: len(setting.gateway.control.membership.members) == 2)
    again = await setting.add(Role.UNIFIED, "u1", max_total_tokens=16_384)
    assert len(known(setting, again)) == 0
    names = {(await served(setting, [*PREFIX, 70 + suffix]))[0] for suffix in range(6)}
    assert names == {"u0", "u1", "u2"}


@pytest.mark.parametrize("pairing", ["prefix_aware", "least_loaded", "round_robin"])
async def test_workers_are_asked_to_tell_only_if_it_matters(folder: Path, pairing: str) -> None:
    async with running(folder, pairing=pairing) as setting:
        one, two = [await setting.add(Role.UNIFIED) for _ in range(2)]
        assert hash_key(one) == hash_key(two)
        assert len(hash_key(one)) == (HASH_KEY_BYTES if pairing == "prefix_aware" else 0)
        await tell(setting, one, 4, added=hashes(one))
        names = {(await served(setting, [*PREFIX, 70 + suffix]))[0] for suffix in range(4)}
        assert names == ({one.worker_id} if pairing == "prefix_aware" else {one.worker_id, two.worker_id})


async def test_every_gateway_has_a_key_of_its_own(folder: Path) -> None:
    found = set()
    for _ in range(2):
        async with running(folder) as setting:
            found.add(hash_key(await setting.add(Role.UNIFIED)))
    assert len(found) == 2
