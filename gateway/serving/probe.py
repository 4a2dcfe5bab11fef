"""Finds out whether workers generate: by a request of one token, or by tokens of others, behind which it may wait."""

import asyncio
import secrets
from typing import Final

from gateway.generation.generation import Generation
from gateway.generation.tallies import Metrics
from gateway.generation.times import Times
from gateway.serving.service import Service
from gateway.words.request import Ask, PromptIds, Sampling
from protocol.errors import Unavailable

PROBE_S: Final = 20.0  # as long as SGLang's probe waits
LOOK_S: Final = 0.25  # how often a probe that waits looks whether others get tokens
ASK: Final = Ask([PromptIds([0])], max_tokens=1, sampling=Sampling(temperature=0.0))


class Probe:
    """Asks the workers of one gateway for a token."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._unseen = Metrics(service.names.first)  # what counts probes, and nobody reads

    async def check(self) -> None:
        """Returns when workers have generated a token since this call. Unavailable if they do not within PROBE_S; or
        what else went wrong, such as Overloaded."""
        missing = self._service.control.membership.missing
        if missing is not None:
            raise Unavailable(missing)
        if not await self._works():
            raise Unavailable(f"workers have generated no token within {PROBE_S:g} s")

    async def _works(self) -> bool:
        metrics = self._service.metrics
        num_before = metrics.num_generation_tokens
        asking = asyncio.create_task(self._ask())
        try:
            async with asyncio.timeout(PROBE_S):
                while not (await asyncio.wait({asking}, timeout=LOOK_S))[0]:
                    if metrics.num_generation_tokens > num_before:
                        return True
        except TimeoutError:
            return False
        finally:
            asking.cancel()
        asking.result()
        return True

    async def _ask(self) -> None:
        """Has workers generate one token. Raises what went wrong."""
        control, translator, clock = self._service.control, self._service.translator, self._service.clock
        prompts = translator.prompts(ASK, control.limits)
        times = Times(clock, self._unseen, clock.now())
        response_id = f"probe-{secrets.token_hex(16)}"
        generation = Generation(response_id, prompts, translator.new_detokenizer, control.dispatch, times)
        try:
            await generation.start()
            async for _ in generation.batches():
                pass
        finally:
            generation.abandon()
        if generation.error is not None:
            raise generation.error
