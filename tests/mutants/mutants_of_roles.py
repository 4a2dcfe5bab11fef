"""Sabotages of prefill, decode and unified, and of the handoff between them."""

from tests.mutants.mutant import ANY, Mutant

UNIFIED = "unified/worker.py"
DECODE = "decode/worker.py"
PREFILL = "prefill/worker.py"

ROLES = (
    Mutant(
        "a job may come again when it has ended",
        PREFILL,
        "        peer.newest = message.reservation\n",
        "",
        "in place, it is written into pages that are others' by now",
        (),
        ("tests/prefill/test_worker.py",),
    ),
    Mutant(
        "an old greeting may come again",
        PREFILL,
        "        if peer is not None and hello.greeting < peer.hello.greeting:\n",
        "        if False:\n",
        "jobs that were given since are dropped, and nobody is told",
        (),
        ("tests/prefill/test_greetings.py",),
    ),
    Mutant(
        "what the last frame does not find is waited for",
        "transfer/receiver.py",
        "        return not self._in_order or self._claimed.count(1) > self._num_pages_landed\n",
        "        return True\n",
        "it will never come",
        (),
        ("tests/transfer/test_receiver.py",),
    ),
    Mutant(
        "what a device is still looking at is missed with the last frame",
        "transfer/receiver.py",
        "        return not self._in_order or self._claimed.count(1) > self._num_pages_landed\n",
        "        return not self._in_order\n",
        "a transfer that is whole fails",
        (),
        ("tests/transfer/test_receiver.py",),
    ),
    Mutant(
        "a last frame that was damaged beyond recognition is waited for",
        "transfer/landing.py",
        "        if self._has_strays:\n",
        "        if False:\n",
        "it will never come",
        (),
        ("tests/transfer/test_landing.py",),
    ),
    Mutant(
        "the late result of a finished choice is not ignored (unified)",
        UNIFIED,
        "        for req, token in tokens:\n            if req.finish is None:\n",
        "        for req, token in tokens:\n            if (req.request_id, req.attempt) in self._requests:\n",
        "it has ended: a token too many",
        ANY,
    ),
    Mutant(
        "the late result of a finished choice is not ignored (decode)",
        DECODE,
        "        for req, token in tokens:\n            if req.finish is None:\n",
        "        for req, token in tokens:\n            if (req.request_id, req.attempt) in self._requests:\n",
        "it has ended: a token too many",
        ANY,
    ),
    Mutant(
        "a PREBUILT batch joins one step late",
        DECODE,
        "        received = self._receive()\n"
        "        self._fail_late(self._clock.now())\n"
        "        self._send_jobs()\n"
        "        progressed = self._loop.step()\n",
        "        progressed = self._loop.step()\n"
        "        received = self._receive()\n"
        "        self._fail_late(self._clock.now())\n"
        "        self._send_jobs()\n",
        "each request waits for a launch that could have had it",
        tests=("tests/handoff/test_depth.py",),
    ),
    *(
        Mutant(
            f"{role} waits for each launch before the next",
            file,
            "OverlapLoop(engine, self, overlap)",
            "OverlapLoop(engine, self, False)",
            "the device stands still while results are handled",
            tests=("tests/handoff/test_depth.py",),
        )
        for role, file in (("prefill", PREFILL), ("decode", DECODE), ("unified", UNIFIED))
    ),
    Mutant(
        "choices share the partial page",
        UNIFIED,
        "        self.engine.copy_pages(sources, targets)\n",
        "",
        "a choice reads a page without the prompt's end",
        ANY,
    ),
    Mutant(
        "choices get no copy of the partial page after a transfer",
        DECODE,
        "self.engine.land(in_twin, sources, targets)",
        "self.engine.land(in_twin, (), ())",
        "a choice reads a page without the prompt's end",
        ANY,
    ),
    Mutant(
        "chunks of a prompt start at its beginning",
        UNIFIED,
        "ExtendChunk(prompt, start, end, going_on if",
        "ExtendChunk(prompt, max(start - 1, 0), end, going_on if",
        "a token is computed twice, and the launch takes more than its budget",
        (),
        ("tests/unified/test_worker.py",),
    ),
    Mutant(
        "a middle chunk samples",
        UNIFIED,
        "going_on if end == prompt.prompt_len else ()",
        "going_on",
        "a first token before the prompt has ended",
        ANY,
    ),
    Mutant(
        "layers leave before they are written",
        PREFILL,
        "while launch.layers and launch.layers[0][1].done():",
        "while launch.layers:",
        "the mark of a layer is the only sign that its KV is there",
        ("late",),
        ("tests/scheduler/test_overlap_regressions.py",),
        detect=True,
    ),
    Mutant(
        "KV leaves only when the whole prompt is computed",
        PREFILL,
        "        for launch in self.engine.in_flight:\n            self._ship_layers(launch)\n",
        "",
        "its client waits for all of it",
        tests=("tests/prefill/test_pipelining.py",),
    ),
    Mutant(
        "KV leaves in whatever order it becomes ready",
        "transfer/sender.py",
        "        self._waiting.setdefault(transfer, deque()).append(frame)\n",
        "        self._waiting.setdefault(transfer, deque()).append(frame)\n"
        "        self._waiting[transfer] = self._waiting.pop(transfer)\n",
        "a prompt that is computed waits for the KV of younger ones",
        tests=("tests/transfer/test_sender.py",),
    ),
    Mutant(
        "pages of a sent prompt go back at once",
        PREFILL,
        "self.engine.release(job.prompt, lambda: self._sender.is_reading(target))",
        "self.engine.release(job.prompt)",
        "the transport still reads them",
        (),
        ("tests/prefill/test_worker.py",),
    ),
    Mutant(
        "job credit is not given back",
        PREFILL,
        "            self.outbox.decode.append((job.peer.instance, JobCredit(job.message.reservation)))\n",
        "            pass\n",
        "decode holds jobs back until earlier ones have ended",
        tests=("tests/prefill/test_worker.py",),
    ),
    Mutant(
        "decode goes on without waiting for the last frame",
        "transfer/receiver.py",
        "        if not whole and self._num_frames < self.last.num_frames and self._may_get_more:\n"
        "            return\n",
        "",
        "frames that are late fail the transfer",
        (),
        ("tests/transfer",),
    ),
    Mutant(
        "pages that prefill may still write are free at once",
        DECODE,
        "self.engine.release(req, partial(self._receiver.may_be_written, request.reservation))",
        "self.engine.release(req)",
        "the next request reads another's KV",
        (),
        ("tests/decode/test_in_place.py",),
    ),
    Mutant(
        "a free seat proves nothing",
        "transfer/writers.py",
        "        if writer is not None and not self._is_there(writer):\n",
        "        if writer is None:\n            return False\n        if False:\n",
        "pages that a dead worker was told never come back",
        (),
        ("tests/transfer/test_writers.py",),
    ),
    Mutant(
        "whoever says so may write in place",
        "transfer/writers.py",
        " and self._seats.is_taken(offer.seat):\n",
        ":\n",
        "decode waits for pages that somebody writes elsewhere",
        (),
        ("tests/transfer/test_writers.py",),
    ),
    Mutant(
        "what was written in place is not looked at",
        "transfer/landing.py",
        "_wrong_sum(header, landing.copy.targets.read(pool))) is not None",
        "None) is not None",
        "a byte that turned is decoded",
        (),
        ("tests/transfer/test_backend_shm.py",),
    ),
    Mutant(
        "a greeting anew keeps the jobs of the one before",
        PREFILL,
        "                self._lose_peer(instance)  # whoever greets anew has forgotten its jobs\n",
        "                pass\n",
        "pages of which nobody tells are quarantined for ever",
        (),
        ("tests/decode/test_in_place.py",),
    ),
)
