"""A prefill and a decode worker without a model. They answer at once and keep a steady pace, so that the gateway is
measured.

    Assign -> FirstToken at once (prefill's connection); then every `step_s` one Tokens for all that run (decode's)

lone_gateway.py has the clients.
"""

from collections.abc import Iterator
from typing import Self

from protocol.messages_gateway import Assign, Role
from protocol.worker_facts import KvPages, WorkerStats
from runtime.clock import Clock
from testkit.fake_worker import Behaviour, FakeWorker, Script

STATS = WorkerStats(kv_pages=KvPages(total=65536, free=65536), running=0, waiting=0)
CONTEXT_LENGTH = 1 << 20
PROMPT_PIECE = 256  # tokens in one message of a prompt's log-probabilities


class FakePair:
    """Start it with `async with`. `vocab_size` is the model's; all token ids are below it. `script`: what it says;
    None: tokens that depend on the prompt."""

    def __init__(
        self, endpoint: str, clock: Clock, step_s: float, vocab_size: int, script: Script | None = None
    ) -> None:
        self.assigned_at: dict[tuple[int, ...], float] = {}  # by the prompt's ids, in seconds of `clock`

        def mixed(assign: Assign, choice: int) -> Iterator[int]:
            start = sum(assign.prompt_ids[:2]) + 7 * choice
            return ((start + 5 * seq) % vocab_size for seq in range(assign.sampling.max_tokens))

        def note(assign: Assign) -> None:
            self.assigned_at[assign.prompt_ids] = clock.now()

        def worker(role: Role, prefill: FakeWorker | None = None) -> FakeWorker:
            return FakeWorker(
                role,
                endpoint,
                str(role),
                Behaviour(script or mixed, prompt_piece=PROMPT_PIECE, step_s=step_s),
                prefill,
                max_total_tokens=CONTEXT_LENGTH,
                max_running_requests=4096,
                context_length=CONTEXT_LENGTH,
                vocab_size=vocab_size,
                stats=STATS,
                on_assign=note,
            )

        self._prefill = worker(Role.PREFILL)
        self._decode = worker(Role.DECODE, self._prefill)

    async def __aenter__(self) -> Self:
        await self._prefill.start()
        await self._decode.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._decode.stop()
        await self._prefill.stop()
