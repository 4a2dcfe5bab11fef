"""Sabotages of one place each, as data: of the scheduler here; the others have files of their own."""

from tests.mutants.mutant import ANY, OVERTAKING, Mutant
from tests.mutants.mutants_of_books import BOOKS
from tests.mutants.mutants_of_caches import CACHES
from tests.mutants.mutants_of_clusters import CLUSTERS
from tests.mutants.mutants_of_devices import DEVICES
from tests.mutants.mutants_of_futures import FUTURES
from tests.mutants.mutants_of_gateway import GATEWAY
from tests.mutants.mutants_of_grammars import GRAMMARS
from tests.mutants.mutants_of_groups import GROUPS
from tests.mutants.mutants_of_handoff import HANDOFF
from tests.mutants.mutants_of_http import HTTP
from tests.mutants.mutants_of_idle import IDLE
from tests.mutants.mutants_of_kernels import ON_A_CPU
from tests.mutants.mutants_of_late_rows import LATE_ROWS
from tests.mutants.mutants_of_layers import DRAFT_LAYERS
from tests.mutants.mutants_of_leaving import LEAVING
from tests.mutants.mutants_of_logprobs import LOGPROBS
from tests.mutants.mutants_of_long_answers import LONG_ANSWERS
from tests.mutants.mutants_of_masks import MASKS
from tests.mutants.mutants_of_mlps import MLPS
from tests.mutants.mutants_of_native import NATIVE
from tests.mutants.mutants_of_pairing import PAIRING
from tests.mutants.mutants_of_parsers import PARSERS
from tests.mutants.mutants_of_policies import POLICIES
from tests.mutants.mutants_of_prompt_logprobs import PROMPT_LOGPROBS
from tests.mutants.mutants_of_ranks import RANKS
from tests.mutants.mutants_of_restarts import RESTARTS
from tests.mutants.mutants_of_returns import RETURNS
from tests.mutants.mutants_of_roles import ROLES
from tests.mutants.mutants_of_rules import RULES
from tests.mutants.mutants_of_sampling import SAMPLING
from tests.mutants.mutants_of_schemas import SCHEMAS
from tests.mutants.mutants_of_shapes import BESIDE_PROMPTS, BUDGETS, LENGTHS_OF_GRAPHS, WARM
from tests.mutants.mutants_of_speculation import SPECULATION
from tests.mutants.mutants_of_steps import STEPS
from tests.mutants.mutants_of_texts import TEXTS

SCHEDULER = "tests/scheduler"

MUTANTS = (
    Mutant(
        "a launch does not wait for the schedule stream",
        "Device.enqueue",
        "self.forward.wait(...)",
        "",
        "its inputs may not be there yet",
        ("late", "early"),
    ),
    Mutant(
        "a copy of pages does not wait for the schedule stream",
        "Copies._launch",
        "stream.wait(...)",
        "",
        "the page numbers may not be there yet",
        ("late", "early"),
    ),
    Mutant(
        "lengths change in place",
        "ScheduleBatch.advance",
        "self.seq_lens_B = self.seq_lens_B + 1",
        "self.seq_lens_B.add_(1)",
        "a launch in flight holds the old tensor",
        ("late", "ranked"),
    ),
    Mutant(
        "lengths on the host change in place",
        "ScheduleBatch.advance",
        "self.seq_lens_cpu = self.seq_lens_cpu + 1",
        "self.seq_lens_cpu += 1",
        "a launch that is being built holds the old array",
        (),
        (f"{SCHEDULER}/execution/test_batches.py",),
    ),
    Mutant(
        "the launch in flight counts as completed",
        "Planner.collect",
        "oldest - 1",
        "oldest",
        "what it touches is reused, what it uses is let go",
        OVERTAKING,
    ),
    Mutant(
        "copies in flight do not hold pages back",
        "KvCopies.oldest",
        "min(self._in_flight, default=__newest)",
        "__newest",
        "a copy reads pages that have gone to somebody else",
        tests=(f"{SCHEDULER}/planning/test_planner_memory.py",),
    ),
    Mutant(
        "nothing keeps the tensors of a copy",
        "Copies._launch",
        "(copy.ticket, stream.record(), tensors)",
        "(copy.ticket, stream.record(), ())",
        "the host lets go of the page numbers while the device reads them",
        ("late", "random"),
    ),
    Mutant(
        "a launch names one of its tensors only",
        "ForwardBatch.tensors",
        "(*self.input.tensors.values(), ...)",
        "(self.input.input_ids_T,)",
        "a device may give the memory of the others away, and the simulation holds them for ever",
        tests=(f"{SCHEDULER}/execution/test_batches_of_launches.py",),
    ),
    Mutant(
        "the executor never checks its mirrors",
        "PlainLaunches.enqueue",
        "if device.debug: ...",
        "if False: ...",
        "host and device may disagree, and nobody says so",
        tests=(f"{SCHEDULER}/execution/test_executor.py",),
    ),
    Mutant(
        "the executor's FutureMap never checks",
        "Executor.__init__",
        "FutureMap(..., debug)",
        "FutureMap(...)",
        "a token that is read twice is not found",
        tests=(f"{SCHEDULER}/execution/test_executor.py",),
    ),
    Mutant(
        "the cluster of the tests checks nothing",
        "Cluster.__init__.planner",
        "Executor(..., debug=debug)",
        "Executor(...)",
        "the simulated streams run without the executable invariants",
        tests=("tests/handoff/test_depth.py",),
    ),
    Mutant(
        "the explored hand-over checks nothing",
        "WorkerProcess.__init__",
        "Executor(..., debug=True)",
        "Executor(...)",
        "its worlds run without the executable invariants",
        tests=("tests/explore_handoff/test_world.py",),
    ),
    Mutant(
        "on a GPU nobody notices a token that no launch has stashed",
        "FutureMap.resolve_future",
        "torch._assert_async",
        "print",
        "the next token follows from garbage",
        tests=(f"{SCHEDULER}/execution/test_future_map.py",),
    ),
    Mutant(
        "a stashed token is not checked for its owner",
        "FutureMap.resolve_future",
        "held_B - owners_B",
        "held_B & ((1 << OWNER_SHIFT) - 1)",
        "a former owner's token would pass for the present one's",
        (),
        (f"{SCHEDULER}/execution/test_future_map.py",),
    ),
    Mutant(
        "the stash comes before the sample",
        "PlainLaunches.sample",
        "future_map.stash(__rows, tokens_L.clamp(min=0), __owners)",
        "",
        "the next launch reads a token that was never drawn",
        ANY,
    ),
    Mutant(
        "a row that was read is not poisoned",
        "FutureMap.resolve_future",
        "self.output_tokens_buf[__rows] = POISON",
        "",
        "a token that is read twice passes unnoticed",
        (),
        (f"{SCHEDULER}/execution/test_future_map.py",),
    ),
    Mutant(
        "sentinels are not resolved",
        "PlainLaunches.resolve",
        "replace(inp, input_ids_T=resolved_T, step=__step)",
        "replace(inp, step=__step)",
        "the model reads minus a row as a token",
        ANY,
    ),
    Mutant(
        "sentinels are resolved twice",
        "PlainLaunches.resolve",
        "replace(inp, input_ids_T=resolved_T, step=__step)",
        "replace(inp, input_ids_T=self._device.future_map.resolve_future("
        "inp.input_ids_T, launch.batch.decode_owners_D), step=__step)",
        "the second gather finds what the first has taken",
        ANY,
    ),
    Mutant(
        "an empty gather is not skipped",
        "FutureMap.resolve_future",
        "if num_decodes == 0: ...",
        "",
        "an idle rank touches the buffer",
        (),
        (f"{SCHEDULER}/execution/test_executor_hazards.py",),
    ),
    Mutant(
        "the sentinel of the wrong row",
        "ScheduleBatch.members",
        "-self.rows_B",
        "-self.rows_B.flip(0)",
        "requests get each other's tokens",
        ANY,
    ),
    Mutant(
        "sentinels are not set after a launch",
        "Executor._enqueue_submitted",
        "self.running.set_input_ids_sentinel()",
        "",
        "a request goes on from the token before",
        ANY,
    ),
    Mutant(
        "a launch writes the batch that the host schedules",
        "PlainLaunches.enqueue",
        "[self.resolve, self.compute, self.sample]",
        "[lambda launch: setattr(running, 'seq_lens_B', launch.batch.input.seq_lens_B[len(plan.chunks):]),"
        " self.resolve, self.compute, self.sample]",
        "by then the batch is that of a later step",
        ("late", "random", "ranked"),
    ),
    Mutant(
        "a finished request stays in the running batch",
        "Roster.next",
        "[__req for __req in self.decoding if __finish and __left]",
        "[req for req in self.decoding if req.num_sampled < req.sampling.max_tokens]",
        "it decodes on, in a row that is somebody else's",
        ANY,
    ),
    Mutant(
        "a plan keeps a row that has left",
        "ScheduleBatch.change",
        "draw.row not in leaving",
        "True",
        "it decodes on, in pages that are somebody else's",
        ANY,
    ),
    Mutant(
        "a late result of a reused row is taken",
        "Results.drawn",
        "map(self._holders.get, owners)",
        "[{row: req for (row, _), req in self._holders.items()}.get(row) for row, _ in owners]",
        "a request gets the last token of the one before it",
        (),
        (f"{SCHEDULER}/planning/test_planner.py",),
    ),
    Mutant(
        "an empty plan skips a stage",
        "ForwardBatch.init_new",
        "chunks or not has_decodes",
        "chunks",
        "an idle rank would miss what the others wait for",
        (),
        (f"{SCHEDULER}/execution/test_executor.py",),
    ),
    Mutant(
        "the executor reads the planner's lists",
        "Plans.grant",
        "tuple(held.pages[num_known:])",
        "held.pages",
        "it would see pages of later plans, and nothing at all from another process",
        ANY,
    ),
    Mutant(
        "a request is launched once more after its last token",
        "Roster.next",
        "req.num_sampled < req.sampling.max_tokens",
        "req.num_sampled <= req.sampling.max_tokens",
        "it writes behind its pages",
        ANY,
    ),
    Mutant(
        "the members of a batch outlive a departure",
        "ScheduleBatch.filter",
        "self._members = self._pages = self._repeated = None",
        "",
        "page table, rows and owners are those of before",
        ANY,
    ),
    Mutant(
        "the members of a batch outlive an arrival",
        "ScheduleBatch.merge",
        "self._members = self._pages = self._repeated = None",
        "",
        "page table, rows and owners are those of before",
        ANY,
    ),
    Mutant(
        "sampling parameters stay behind when a batch is filtered",
        "ScheduleBatch.filter",
        "self.sampling.take(keep)",
        "self.sampling.take(range(len(keep)))",
        "a request is sampled with its neighbour's parameters",
        ANY,
    ),
    Mutant(
        "PREBUILT counts the first token's KV as written",
        "Req.num_written",
        "__length - 1",
        "__length",
        "a hole in the KV",
        ANY,
    ),
    Mutant(
        "the host reads results before they are there",
        "Executor.poll",
        "oldest.copy_done.done()",
        "True",
        "it reads what was in the buffer before",
        ("late", "early-late-copies", "random"),
    ),
    Mutant(
        "a failed launch leaves nothing for those who joined the next",
        "PlainLaunches.sample",
        "future_map.stash(__rows, torch.zeros_like(__rows), __owners)",
        "",
        "they fail with it",
        ANY,
        (f"{SCHEDULER}/execution/test_executor.py",),
    ),
    Mutant(
        "a failed launch fails only its prompts",
        "Launched.reqs",
        "[*__prompts, *self.decodes]",
        "[*__prompts]",
        "the requests that decoded in it never end",
        ANY,
    ),
    Mutant(
        "three launches in flight",
        "OverlapLoop.__init__",
        "2 if overlap else 1",
        "3 if overlap else 1",
        "a batch is chosen without the results of two",
        ("late",),
    ),
    Mutant(
        "a sampled token's position is one off",
        "sampling_of",
        "chunk.end",
        "chunk.end - 1",
        "noise belongs to a position; a retry would draw another token",
        ANY,
    ),
    *BOOKS,
    *CACHES,
    *POLICIES,
    *NATIVE,
    *LONG_ANSWERS,
    *PAIRING,
    *PARSERS,
    *HTTP,
    *RETURNS,
    *ROLES,
    *RULES,
    *SAMPLING,
    *LOGPROBS,
    *PROMPT_LOGPROBS,
    *GRAMMARS,
    *LATE_ROWS,
    *SCHEMAS,
    *SPECULATION,
    *DRAFT_LAYERS,
    *HANDOFF,
    *CLUSTERS,
    *GATEWAY,
    *DEVICES,
    *FUTURES,
    *IDLE,
    *MASKS,
    *GROUPS,
    *LEAVING,
    *RANKS,
    *RESTARTS,
    *STEPS,
    *WARM,
    *BUDGETS,
    *BESIDE_PROMPTS,
    *LENGTHS_OF_GRAPHS,
    *TEXTS,
    *MLPS,
    *ON_A_CPU,
)
