"""Sabotages of the handoff: of what keeps a frame, a page, a credit or an attempt from the wrong hands. The simulation
of the handoff must notice each within its first worlds."""

from tests.mutants.mutant import Mutant

WORLDS = 50


def _mutant(name: str, function: str, old: str, new: str, why: str) -> Mutant:
    return Mutant(name, function, old, new, why, worlds=WORLDS)


HANDOFF = (
    _mutant(
        "frames may land for a request that is gone",
        "Reservations.close",
        "self._receiver.release(...)",
        "",
        "the pages have a new owner by then",
    ),
    _mutant(
        "pages are free while prefill may still write them in place",
        "DecodeWorker._end",
        "self.engine.release(req, __is_written)",
        "self.engine.release(req)",
        "a late write reaches the KV of the next request",
    ),
    _mutant(
        "prefill's pages are free while the wire reads them",
        "PrefillWorker._end",
        "self.engine.release(job.prompt, __is_read)",
        "self.engine.release(job.prompt)",
        "the KV of another prompt is sent",
    ),
    _mutant(
        "a frame lands twice",
        "ReceiveTransfer._claim",
        "if taken: ...",
        "if taken < 0: ...",
        "a late copy of a half-filled page overwrites what decode has added to it",
    ),
    _mutant(
        "checksums are not looked at",
        "_wrong_sum",
        "verify_checksum(...)",
        "",
        "damaged KV is decoded",
    ),
    _mutant(
        "the last frame is enough",
        "ReceiveTransfer._received",
        "self._num_pages_landed == len(self._claimed)",
        "True",
        "decode begins before all frames are there",
    ),
    _mutant(
        "an instance that was declared lost may come back",
        "Membership._lose",
        "self._lost[member.key] = __loss",
        "",
        "what it holds, and whom it knows, is of another time",
    ),
    _mutant(
        "decode does not say that the KV has arrived",
        "DecodeWorker._on_delivered",
        "self.outbox.prefill.append(__delivered)",
        "",
        "prefill keeps its pages until a deadline",
    ),
    _mutant(
        "prefill does not hear of a cancel",
        "DecodeWorker._end",
        "cancel_job",
        "cancel_job is None",
        "it computes and keeps pages for nobody",
    ),
    _mutant(
        "a cancel meets a request that it takes for an unknown one",
        "DecodeWorker._on_cancel",
        "message.attempt",
        "message.attempt + 1",
        "it runs on to its end",
    ),
    _mutant(
        "prefill keeps the jobs of a decode worker that is lost",
        "PrefillWorker._lose_peer",
        "owner == instance",
        "owner < 0",
        "their pages wait for a word that nobody will say",
    ),
    _mutant(
        "decode keeps waiting for a prefill worker that is lost",
        "DecodeWorker._lose_peer",
        "self._fail_all(message.instance, ...)",
        "self._fail_all(-1, ...)",
        "its requests wait until a deadline, instead of going elsewhere",
    ),
    _mutant(
        "decode returns no credit for frames",
        "DecodeWorker._receive",
        "event.sender_instance",
        "-1",
        "the sender waits for ever",
    ),
    _mutant(
        "bytes that were lost block a peer for ever",
        "CreditWindow.fits",
        "not self._going_on",
        "not self.in_flight",
        "what is lost is never returned",
    ),
    _mutant(
        "the frames of a transfer that has ended still count",
        "FrameSender._ended",
        "peer.credit.end(...)",
        "",
        "what is lost is never returned",
    ),
    _mutant(
        "job credit comes back only where prefill says so",
        "Reservations.close",
        "peer.settle(...)",
        "",
        "what it says may be lost; then requests wait for credit for ever",
    ),
    _mutant(
        "decode does not hear that prefill has stopped writing",
        "Writers.ended",
        "writer.instance == instance",
        "False",
        "the pages stay in quarantine",
    ),
    _mutant(
        "a writer is believed to have stopped because nobody waits for it",
        "Writers.may_be_written",
        "reservation in self._writing",
        "False",
        "a late write reaches the KV of the next request",
    ),
    _mutant(
        "a retry begins without the tokens that the client has",
        "RequestRecord.message",
        "(*self.prompt.token_ids, *replayed)",
        "self.prompt.token_ids",
        "it draws others",
    ),
    _mutant(
        "a retry numbers its tokens from the start",
        "RequestRecord.message",
        "len(replayed)",
        "0",
        "they are taken for those that the client has",
    ),
    _mutant(
        "attempts that end still weigh on their worker",
        "Dispatch._end_attempt",
        "self._loads.remove(attempt.decode, ...)",
        "",
        "it gets fewer and fewer requests",
    ),
    _mutant(
        "nobody is told of a worker that is lost",
        "Membership._lose",
        "tuple(__told)",
        "()",
        "its peers wait for deadlines, and keep what they hold for it",
    ),
    _mutant(
        "frames that were lost with their connection are not missed",
        "PrefillWorker.step",
        "self._fail_broken()",
        "",
        "decode waits for them until a deadline",
    ),
    _mutant(
        "a connection to prefill that has come back is taken for the old one",
        "PrefillLink.receive",
        "dealer.has_returned()",
        "False",
        "what was lost with it is missed only at a deadline",
    ),
    Mutant(
        "prefill takes a new greeting for a repeat",
        "PrefillPeers.greet",
        "self._num_greetings + 1",
        "self._num_greetings",
        "it keeps the jobs of which the acknowledgement was lost",
        tests=("tests/decode/test_prefill_peers.py",),
    ),
    Mutant(
        "the youngest of those that wait is admitted first",
        "Reservations._next",
        "min(...)",
        "max(...)",
        "an old request starves",
        tests=("tests/decode/test_admission.py",),
    ),
    Mutant(
        "a deadline that was put off comes all the same",
        "Deadlines.due",
        "self._at.get(key) == (at, number)",
        "key in self._at",
        "a wait is given up too early",
        tests=("tests/runtime/test_deadlines.py",),
    ),
    Mutant(
        "prefill takes jobs of an older greeting",
        "PrefillWorker._on_job",
        "message.greeting != peer.hello.greeting",
        "False",
        "their pages are others' by now",
        tests=("tests/prefill/test_greetings.py",),
    ),
)
