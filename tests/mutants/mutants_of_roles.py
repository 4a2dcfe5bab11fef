"""Sabotages of prefill, decode and unified, and of the handoff between them."""

from tests.mutants.mutant import ANY, Mutant

UNIFIED = "unified/worker.py"
DECODE = "decode/worker.py"
PREFILL = "prefill/worker.py"

ROLES = (
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
        "        self.engine.copy_pages(sources, targets)\n",
        "",
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
        "after a while no job is sent any more",
        ANY,
    ),
    Mutant(
        "decode goes on without waiting for the last frame",
        "transfer/receiver.py",
        "        if not whole and self._num_frames < self.last.num_frames:\n            return\n",
        "",
        "frames that are late fail the transfer",
        (),
        ("tests/transfer",),
    ),
)
