"""`python -m bench.overlap.front BATCH CONTEXT OUTPUTS VOCAB`: plays the gateway for one worker that is measured.

It prints the address that it is bound to, welcomes the worker, gives it BATCH requests, and reads what the worker says
until its standard input ends.
"""

import random
import sys
from collections.abc import Sequence

import zmq

from protocol.messages_gateway import TO_GATEWAY, TO_WORKER, Assign, Register, SamplingParams, ToWorker, Welcome
from runtime.bus import Router
from runtime.session import Session, open_envelope

INSTANCE = 1
POLL_MS = 100


def assigns(batch: int, context: int, outputs: int, vocab_size: int) -> list[Assign]:
    """Requests of random tokens that decode `outputs` tokens each."""
    rng = random.Random(0)
    params = SamplingParams(max_tokens=outputs, temperature=0.0, ignore_eos=True)
    return [
        Assign(
            request_id=f"r{index}",
            attempt=0,
            prompt_ids=tuple(rng.choices(range(vocab_size), k=context)),
            sampling=params,
            num_choices=1,
            prefill=None,
        )
        for index in range(batch)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, when standard input ends."""
    work = assigns(*map(int, sys.argv[1:] if argv is None else argv))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router, session = Router(context, "127.0.0.1"), Session(0)
    print(router.endpoint, flush=True)

    poller = zmq.Poller()
    for source in (router.socket, sys.stdin.fileno()):
        poller.register(source, zmq.POLLIN)
    is_member = False
    while True:
        if sys.stdin.fileno() in dict(poller.poll(POLL_MS)):
            break
        for identity, raw in router.receive():
            envelope = open_envelope(raw)
            message = TO_GATEWAY.decode(envelope.body) if envelope.body else None
            if envelope.opens:
                session = Session(envelope.epoch)
            session.accept(envelope)
            if isinstance(message, Register) and not is_member:
                is_member = True
                said: list[ToWorker] = [Welcome(INSTANCE), *work]
                for each in said:
                    router.send(identity, session.seal(TO_WORKER.encode(each)))
    router.close()
    context.term()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
