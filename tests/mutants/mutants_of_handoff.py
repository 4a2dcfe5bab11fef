"""Sabotages of the handoff: of what keeps a frame, a page, a credit or an attempt from the wrong hands. The simulation
of the handoff must notice each within its first worlds."""

from tests.mutants.mutant import Mutant

DECODE = "decode/worker.py"
PREFILL = "prefill/worker.py"
PREFILL_LINK = "decode/prefill_link.py"
PREFILL_PEERS = "decode/prefill_peers.py"
RESERVATIONS = "decode/reservations.py"
RECEIVER = "transfer/receiver.py"
LANDING = "transfer/landing.py"
SENDER = "transfer/sender.py"
SENDING = "transfer/sending.py"
WRITERS = "transfer/writers.py"
DISPATCH = "gateway/dispatch.py"
REQUESTS = "gateway/requests.py"
MEMBERSHIP = "gateway/membership.py"
WORLDS = 50


def _mutant(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    return Mutant(name, file, old, new, why, worlds=WORLDS)


HANDOFF = (
    _mutant(
        "frames may land for a request that is gone",
        RESERVATIONS,
        "        self._receiver.release(request.reservation)\n",
        "",
        "the pages have a new owner by then",
    ),
    _mutant(
        "pages are free while prefill may still write them in place",
        DECODE,
        "self.engine.release(req, partial(self._receiver.may_be_written, request.reservation))",
        "self.engine.release(req)",
        "a late write reaches the KV of the next request",
    ),
    _mutant(
        "prefill's pages are free while the wire reads them",
        PREFILL,
        "self.engine.release(job.prompt, lambda: self._sender.is_reading(target))",
        "self.engine.release(job.prompt)",
        "the KV of another prompt is sent",
    ),
    _mutant(
        "a frame lands twice",
        RECEIVER,
        "        if taken:\n",
        "        if taken < 0:\n",
        "a late copy of a half-filled page overwrites what decode has added to it",
    ),
    _mutant(
        "checksums are not looked at",
        LANDING,
        "        verify_checksum(header, payload)\n",
        "        pass\n",
        "damaged KV is decoded",
    ),
    _mutant(
        "the last frame is enough",
        RECEIVER,
        "        whole = self._num_pages_landed == len(self._claimed)\n",
        "        whole = True\n",
        "decode begins before all frames are there",
    ),
    _mutant(
        "an instance that was declared lost may come back",
        MEMBERSHIP,
        """        self._lost[member.key] = Loss(f"{reason}; this instance may not return", member.last_seen)\n""",
        "",
        "what it holds, and whom it knows, is of another time",
    ),
    _mutant(
        "decode does not say that the KV has arrived",
        DECODE,
        "        self.outbox.prefill.append((request.prefill, KvDelivered(*request.key, request.reservation)))\n",
        "",
        "prefill keeps its pages until a deadline",
    ),
    _mutant(
        "prefill does not hear of a cancel",
        DECODE,
        "        if self._reservations.close(request) and cancel_job:\n",
        "        if self._reservations.close(request) and cancel_job is None:\n",
        "it computes and keeps pages for nobody",
    ),
    _mutant(
        "a cancel meets a request that it takes for an unknown one",
        DECODE,
        "        request = self._requests.get((message.request_id, message.attempt))\n        if request is None:\n"
        "            return\n        if message.choice < 0:\n",
        "        request = self._requests.get((message.request_id, message.attempt + 1))\n        if request is None:\n"
        "            return\n        if message.choice < 0:\n",
        "it runs on to its end",
    ),
    _mutant(
        "prefill keeps the jobs of a decode worker that is lost",
        PREFILL,
        "        for job in [job for (owner, _), job in self._jobs.items() if owner == instance]:\n",
        "        for job in [job for (owner, _), job in self._jobs.items() if owner < 0]:\n",
        "their pages wait for a word that nobody will say",
    ),
    _mutant(
        "decode keeps waiting for a prefill worker that is lost",
        DECODE,
        "            self._fail_all(message.instance, WorkerLost(",
        "            self._fail_all(-1, WorkerLost(",
        "its requests wait until a deadline, instead of going elsewhere",
    ),
    _mutant(
        "decode returns no credit for frames",
        DECODE,
        "                if (peer := self._peers.get(event.sender_instance)) is not None:\n",
        "                if (peer := self._peers.get(-1)) is not None:\n",
        "the sender waits for ever",
    ),
    _mutant(
        "bytes that were lost block a peer for ever",
        SENDER,
        "        return not self._going_on or self.in_flight + num_bytes <= self.window\n",
        "        return not self.in_flight or self.in_flight + num_bytes <= self.window\n",
        "what is lost is never returned",
    ),
    _mutant(
        "the frames of a transfer that has ended still count",
        SENDING,
        "        peer.credit.end(transfer.target.reservation)\n",
        "",
        "what is lost is never returned",
    ),
    _mutant(
        "job credit comes back only where prefill says so",
        RESERVATIONS,
        "            peer.settle(request.reservation)\n",
        "            pass\n",
        "what it says may be lost; then requests wait for credit for ever",
    ),
    _mutant(
        "decode does not hear that prefill has stopped writing",
        WRITERS,
        "        if writer is not None and writer.instance == instance:\n",
        "        if writer is not None and writer.instance == -1:\n",
        "the pages stay in quarantine",
    ),
    _mutant(
        "a writer is believed to have stopped because nobody waits for it",
        WRITERS,
        "        return reservation in self._writing\n",
        "        return False\n",
        "a late write reaches the KV of the next request",
    ),
    _mutant(
        "a retry begins without the tokens that the client has",
        REQUESTS,
        "            (*self.job.prompt_ids, *replayed),\n",
        "            self.job.prompt_ids,\n",
        "it draws others",
    ),
    _mutant(
        "a retry numbers its tokens from the start",
        REQUESTS,
        "            len(replayed),\n        )\n",
        "            0,\n        )\n",
        "they are taken for those that the client has",
    ),
    _mutant(
        "attempts that end still weigh on their worker",
        DISPATCH,
        "            self._loads.remove(attempt.decode, decode_load(attempt.need))\n",
        "            pass\n",
        "it gets fewer and fewer requests",
    ),
    _mutant(
        "nobody is told of a worker that is lost",
        MEMBERSHIP,
        "        return Change(tuple(Outgoing(other.key, news) for other in self.members), (member,))\n",
        "        return Change((), (member,))\n",
        "its peers wait for deadlines, and keep what they hold for it",
    ),
    _mutant(
        "frames that were lost with their connection are not missed",
        PREFILL,
        "        self._fail_broken()\n",
        "",
        "decode waits for them until a deadline",
    ),
    _mutant(
        "a connection to prefill that has come back is taken for the old one",
        PREFILL_LINK,
        "            if dealer.has_returned():\n",
        "            if False:\n",
        "what was lost with it is missed only at a deadline",
    ),
    Mutant(
        "prefill takes a new greeting for a repeat",
        PREFILL_PEERS,
        "self._num_greetings = self._num_greetings, self._num_greetings + 1\n",
        "self._num_greetings = self._num_greetings, self._num_greetings\n",
        "it keeps the jobs of which the acknowledgement was lost",
        tests=("tests/decode/test_prefill_peers.py",),
    ),
    Mutant(
        "the youngest of those that wait is admitted first",
        RESERVATIONS,
        "        return min(firsts,",
        "        return max(firsts,",
        "an old request starves",
        tests=("tests/decode/test_admission.py",),
    ),
    Mutant(
        "a deadline that was put off comes all the same",
        "runtime/deadlines.py",
        "            if self._at.get(key) == (at, number):\n",
        "            if key in self._at:\n",
        "a wait is given up too early",
        tests=("tests/runtime/test_deadlines.py",),
    ),
    Mutant(
        "prefill takes jobs of an older greeting",
        PREFILL,
        "        if message.greeting != peer.hello.greeting:\n",
        "        if False:\n",
        "their pages are others' by now",
        tests=("tests/prefill/test_greetings.py",),
    ),
)
