"""Groups of ranks over real sockets: their sessions, and the requests of a group that is lost."""

import asyncio
from typing import Any

import pytest

from protocol.messages_gateway import Left, PeerLost, Refused, RegisterAgain, Role
from protocol.messages_group import GroupPlace
from testkit.fake_worker import Behaviour, FakeWorker
from tests.gateway.conftest import Setting, wait_until


def members(setting: Setting) -> list[str]:
    return [member.key.worker_id for member in setting.gateway.control.membership.members]


async def test_a_rank_that_waits_asks_again_and_serves_in_its_latest_session(setting: Setting) -> None:
    endpoint = setting.gateway.control_endpoint
    ranks = [FakeWorker(Role.UNIFIED, endpoint, f"g.{rank}", place=GroupPlace("g", 1, rank, 2)) for rank in range(2)]
    setting.workers += ranks
    starting = asyncio.create_task(ranks[0].start())
    await wait_until(lambda: bool(setting.gateway.control.membership._kept_waiting))
    await ranks[0].send(ranks[0].registration())
    await ranks[0].until(lambda: any(isinstance(message, RegisterAgain) for message in ranks[0].received))
    await ranks[0].send(ranks[0].registration())  # now the second message of the second session
    assert members(setting) == [] and not ranks[0].welcomed.is_set()

    await ranks[1].start()
    await starting
    assert members(setting) == ["g.0", "g.1"]
    while not all(rank.assigned for rank in ranks):
        assert (await setting.complete("x", max_tokens=4)).status_code == 200
    assert setting.gateway.control.joined["unified"] == 2 and setting.gateway.control.membership.num_lost == 0


@pytest.mark.parametrize("how", ["dies", "leaves"])
async def test_requests_of_every_rank_go_on_elsewhere_when_one_is_lost(setting: Setting, how: str) -> None:
    good = await setting.add(Role.UNIFIED, "u")
    undisturbed = (await setting.complete("hello", max_tokens=9)).json()["choices"]
    ranks = await setting.add_group(Role.UNIFIED, "g", 2, behaviour=Behaviour(stop_after=3))

    async def ask() -> Any:
        return (await setting.complete("hello", max_tokens=9)).json()["choices"]

    asked = []
    while not all(rank.assigned for rank in ranks):
        asked.append(asyncio.create_task(ask()))
        await asyncio.sleep(0.01)
    records = setting.gateway.control.dispatch.requests
    await wait_until(lambda: all(len(record.choices[0].token_ids) == 3 for record in records))
    if how == "dies":
        await ranks[1].stop()
    else:
        await ranks[1].send(Left("g.1", ranks[1].instance))

    assert await asyncio.gather(*asked) == [undisturbed] * len(asked)
    assert members(setting) == ["u"] and setting.gateway.control.membership.num_lost == 2
    assert {message.num_replayed for message in good.assigned} == {0, 3}
    lost = [message for message in good.received if isinstance(message, PeerLost)]
    assert [message.worker_id for message in lost] == ["g.0", "g.1"]
    await ranks[0].until(lambda: any(isinstance(message, Refused) for message in ranks[0].received))
    [refused, *_] = [message for message in ranks[0].received if isinstance(message, Refused)]
    assert refused.reason.startswith("its group has lost a rank: worker 'g.1' ")
