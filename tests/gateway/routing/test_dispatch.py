from gateway.routing.members import WorkerKey
from testkit.fake_worker import Behaviour
from tests.gateway.conftest import Setting


async def test_a_prompt_weighs_on_its_prefill_worker_until_its_first_token_and_no_longer(setting: Setting) -> None:
    decode = await setting.add_pair(Behaviour(stop_after=2))
    body = {"prompt": "x", "max_tokens": 9, "stream": True}
    async with setting.client.stream("POST", "/v1/completions", json=body) as response:
        await anext(response.aiter_lines())
        loads = setting.gateway.control.dispatch.loads
        assert set(loads) == {WorkerKey(decode.worker_id, decode.instance)}, "decode goes on, and prefill has done it"
