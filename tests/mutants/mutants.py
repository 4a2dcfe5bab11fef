"""Sabotages of one line each, as data: what is changed, why that is wrong, and what must notice it.

`strategies` are those of make explore, each with ten seeds; `tests` are for what no schedule of a fake model can show.
"""

from dataclasses import dataclass

SEEDS = 10
ANY = ("late", "early", "early-late-copies", "random", "ranked", "in-order")
OVERTAKING = ("ranked", "random", "late")
SCHEDULER = "tests/scheduler"


@dataclass(frozen=True)
class Mutant:
    """`old` stands in `file` exactly once and becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    why: str
    strategies: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


ENGINE = "scheduler/engine.py"
BATCH = "scheduler/schedule_batch.py"
FORWARD = "scheduler/forward_batch.py"
FUTURE = "scheduler/future_map.py"
RETIRE = "scheduler/retire_queue.py"
ROWS = "scheduler/row_pool.py"
PAGES = "scheduler/page_allocator.py"
LOOP = "scheduler/overlap_loop.py"
RUNNING = "scheduler/running.py"
UNIFIED = "unified/worker.py"
DECODE = "decode/worker.py"
PREFILL = "prefill/worker.py"

MUTANTS = (
    Mutant(
        "a launch does not wait for the schedule stream",
        ENGINE,
        "        self._forward.wait(self._schedule.record())\n        self._forward.launch([self._resolve",
        "        self._forward.launch([self._resolve",
        "its inputs may not be there yet",
        ("late", "early"),
    ),
    Mutant(
        "a copy of pages does not wait for the schedule stream",
        ENGINE,
        "        self._forward.wait(self._schedule.record())\n        self._forward.launch([partial",
        "        self._forward.launch([partial",
        "the page numbers may not be there yet",
        ("late", "early"),
    ),
    Mutant(
        "lengths change in place",
        BATCH,
        "self.seq_lens_B = self.seq_lens_B + 1",
        "self.seq_lens_B.add_(1)",
        "a launch in flight holds the old tensor",
        ("late", "ranked"),
    ),
    Mutant(
        "lengths on the host change in place",
        BATCH,
        "self.seq_lens_cpu = self.seq_lens_cpu + 1",
        "self.seq_lens_cpu += 1",
        "a launch that cannot be built puts the old ones back",
        (),
        (f"{SCHEDULER}/test_overlap_loop.py", f"{SCHEDULER}/test_schedule_batch.py"),
    ),
    Mutant(
        "rows and pages are free before the launches that may touch them have completed",
        RETIRE,
        "if entry.after_ticket <= completed_ticket and (",
        "if (",
        "a redundant forward writes into the pages of somebody else",
        OVERTAKING,
    ),
    Mutant(
        "the retire queue waits for one launch too few",
        ENGINE,
        "rows, self._newest_ticket, is_read)",
        "rows, self._newest_ticket - 1, is_read)",
        "the launch in flight may still touch what is free",
        OVERTAKING,
    ),
    Mutant(
        "the launch in flight counts as completed",
        ENGINE,
        "completed = min(oldest) - 1 if oldest",
        "completed = min(oldest) if oldest",
        "what it touches is reused, what it uses is let go",
        OVERTAKING,
    ),
    Mutant(
        "copies in flight do not hold pages back",
        ENGINE,
        "        oldest += [self._copies[0][0]] if self._copies else []\n",
        "",
        "a copy reads pages that have gone to somebody else",
        ("late", "ranked"),
    ),
    Mutant(
        "pages go back although a transfer reads them",
        RETIRE,
        "and (entry.is_read is None or not entry.is_read())",
        "",
        "what is sent is the next request's KV",
        ANY,
        (f"{SCHEDULER}/test_retire_queue.py",),
    ),
    Mutant(
        "nothing keeps the tensors of a copy",
        ENGINE,
        "        self._keep_alive.hold(self._newest_ticket, tensors)\n",
        "",
        "the host lets go of the page numbers while the device reads them",
        ("late", "random"),
    ),
    Mutant(
        "a stashed token is not checked for its owner",
        FUTURE,
        "if row > 0 and written != generation:",
        "if False and row > 0 and written != generation:",
        "a former owner's token would pass for the present one's",
        (),
        (f"{SCHEDULER}/test_future_map.py",),
    ),
    Mutant(
        "the stash comes before the sample",
        ENGINE,
        "                self.future_map.stash(batch.stash_rows_L, tokens_L.clamp(min=0), batch.stash_generations)\n"
        "                launch.tokens_L = self._forward.to_host(tokens_L)",
        "                launch.tokens_L = self._forward.to_host(tokens_L)",
        "the next launch reads a token that was never drawn",
        ANY,
    ),
    Mutant(
        "a row that was read is not poisoned",
        FUTURE,
        "        self.output_tokens_buf[[row for row in rows if row > 0]] = POISON\n",
        "",
        "a token that is read twice passes unnoticed",
        (),
        (f"{SCHEDULER}/test_future_map.py",),
    ),
    Mutant(
        "sentinels are not resolved",
        ENGINE,
        "if launch.batch.has_sentinels:",
        "if not launch.batch.has_sentinels:",
        "the model reads minus a row as a token",
        ANY,
    ),
    Mutant(
        "sentinels are resolved twice",
        ENGINE,
        "                inp = replace(inp, input_ids_T=resolved_T)",
        "                inp = replace(inp, input_ids_T=self.future_map.resolve_future(inp.input_ids_T, generations))",
        "the second gather finds what the first has taken",
        ANY,
    ),
    Mutant(
        "an empty gather is not skipped",
        FUTURE,
        "        if input_ids_T.numel() == 0:\n            return input_ids_T\n",
        "",
        "an idle rank touches the buffer",
        (),
        (f"{SCHEDULER}/test_overlap_regressions.py",),
    ),
    Mutant(
        "the sentinel of the wrong row",
        FUTURE,
        "batch.input_ids_B = -batch.rows_B",
        "batch.input_ids_B = -batch.rows_B.flip(0)",
        "requests get each other's tokens",
        ANY,
    ),
    Mutant(
        "sentinels are not set after a launch",
        ENGINE,
        "            self.future_map.set_input_ids_sentinel(plan.running)\n",
        "            pass\n",
        "a request goes on from the token before",
        ANY,
    ),
    Mutant(
        "a launch writes the batch that the host schedules",
        ENGINE,
        "            launch.input = inp\n",
        "            launch.input = inp\n"
        "            if launch.plan.running is not None:\n"
        "                launch.plan.running.seq_lens_B = inp.seq_lens_B[-inp.num_decodes :]\n",
        "by then the batch is that of a later step",
        ("late", "random", "ranked"),
    ),
    Mutant(
        "row 0 is handed out",
        ROWS,
        "self._free = list(range(num_rows - 1, 0, -1))",
        "self._free = list(range(num_rows - 1, -1, -1))",
        "it is padding",
        ANY,
        (f"{SCHEDULER}/test_row_pool.py",),
    ),
    Mutant(
        "page 0 is handed out",
        PAGES,
        "self._free = list(range(num_pages - 1, 0, -1))",
        "self._free = list(range(num_pages - 2, -1, -1))",
        "it is padding",
        ANY,
    ),
    Mutant(
        "a row keeps its generation",
        ROWS,
        "        self._generation[row] += 1\n",
        "",
        "the debug check cannot tell one owner from the next",
        (),
        (f"{SCHEDULER}/test_row_pool.py",),
    ),
    Mutant(
        "a row's page table is the one before",
        ROWS,
        "        self.req_to_page[row, : len(pages)] = torch.tensor(pages, dtype=torch.int64)\n",
        "",
        "it reads the pages of its former owner",
        ANY,
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
        "rows and pages are released twice",
        ENGINE,
        "            req.row, req.pages = 0, []\n",
        "            req.pages = list(req.pages)\n",
        "somebody else's row and pages go back",
        ANY,
    ),
    Mutant(
        "a finished request stays in the running batch",
        RUNNING,
        "if req.finish is None and req.num_sampled",
        "if req.num_sampled",
        "it decodes on, in a row that is somebody else's",
        ANY,
    ),
    Mutant(
        "a request is launched once more after its last token",
        RUNNING,
        "req.num_sampled < req.sampling.max_tokens",
        "req.num_sampled <= req.sampling.max_tokens",
        "it writes behind its pages",
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
        "the partial page is the one before it",
        "scheduler/choice_pages.py",
        "    index = prompt_len // page_size\n",
        "    index = max(prompt_len // page_size - 1, 0)\n",
        "a choice reads a page without the prompt's end",
        ANY,
    ),
    Mutant(
        "the members of a batch outlive a departure",
        BATCH,
        "        self._members = None\n        self.reqs = [self.reqs[index] for index in keep]\n",
        "        self.reqs = [self.reqs[index] for index in keep]\n",
        "page table, rows and owners are those of before",
        ANY,
    ),
    Mutant(
        "the members of a batch outlive an arrival",
        BATCH,
        "        self._members = None\n        self.reqs = self.reqs + other.reqs\n",
        "        self.reqs = self.reqs + other.reqs\n",
        "page table, rows and owners are those of before",
        ANY,
    ),
    Mutant(
        "sampling parameters stay behind when a batch is filtered",
        BATCH,
        "self.sampling = self.sampling.take(keep_N)",
        "self.sampling = self.sampling.take(torch.arange(len(keep)))",
        "a request is sampled with its neighbour's parameters",
        ANY,
    ),
    Mutant(
        "PREBUILT counts the first token's KV as written",
        BATCH,
        "len(req.outputs) - req.num_replayed - 1 for",
        "len(req.outputs) - req.num_replayed for",
        "a hole in the KV",
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
        "the host reads results before they are there",
        ENGINE,
        "if copy_done is None or not copy_done.done():",
        "if copy_done is None:",
        "it reads what was in the buffer before",
        ("late", "early-late-copies", "random"),
    ),
    Mutant(
        "layers leave before they are written",
        PREFILL,
        "while launch.layers and launch.layers[0][1].done():",
        "while launch.layers:",
        "the mark of a layer is the only sign that its KV is there",
        (),
        ("tests/prefill/test_worker.py",),
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
        "a failed launch leaves nothing for those who joined the next",
        ENGINE,
        "            self.future_map.stash(batch.stash_rows_L, torch.zeros_like(batch.stash_rows_L), "
        "batch.stash_generations)\n",
        "            pass\n",
        "they fail with it",
        ANY,
        (f"{SCHEDULER}/test_engine.py",),
    ),
    Mutant(
        "a failed launch fails only its prompts",
        LOOP,
        "self._role.failed([*prompts, *launch.batch.samples], launch.error)",
        "self._role.failed([*prompts], launch.error)",
        "the requests that decoded in it never end",
        ANY,
    ),
    Mutant(
        "three launches in flight",
        LOOP,
        "self._depth = 2 if overlap else 1",
        "self._depth = 3 if overlap else 1",
        "a batch is chosen without the results of two",
        ("late",),
    ),
    Mutant(
        "job credit is not given back",
        PREFILL,
        "            self.outbox.decode.append((job.peer.instance, JobCredit(job.prompt.prompt_len)))\n",
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
    Mutant(
        "a page has one reference too many",
        PAGES,
        "            self._refs[page] = 1\n",
        "            self._refs[page] = 2\n",
        "it never comes back",
        ANY,
    ),
    Mutant(
        "a sampled token's position is one off",
        FORWARD,
        "    ends = [chunk.end for chunk in chunks for _ in chunk.samples]\n",
        "    ends = [chunk.end - 1 for chunk in chunks for _ in chunk.samples]\n",
        "noise belongs to a position; a retry would draw another token",
        ANY,
    ),
)
