"""The plan of one world, made from its seed: the deployment, the requests, the clients that leave, the flushes of
caches, and the faults with their times.

Pools, windows and credits are small, so that the requests compete for them.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from protocol.kv_layout import pages_for_choices
from protocol.logprobs import PromptLogprobsAsked
from protocol.messages_gateway import Role, SamplingParams
from runtime.settings import Pairing
from scheduler.planning.spills import Costs
from tests.decode.driving import VOCAB
from tests.explore.workload import asking, asking_prompt, random_layers, random_policies, random_tree
from tests.explore_handoff.data_plane import FrameFate
from tests.grammars import with_grammar
from tests.ruling import with_rules
from worker.policies import DEFAULTS, Policies

CONTEXT = 40
HOT = 20.0  # as in tests/explore/workload.py, and so are these
FIRST_WITH_TREES = 54
FIRST_WITH_LAYERS = 60
FIRST_WITH_DRAFT = 50  # mutants are tried on the worlds before; those of drafts name tests of their own
FIRST_WITH_GRAMMARS = 64
FIRST_WITH_GROUPS = 100  # from here on every fourth seed has a group of ranks
SLEEPING = 14_000  # the same of worlds in which workers sleep: every fourth, too
GROUPED = 7_000  # a multiple of the kinds; their drafts are those of late seeds
UP_TO_30_TOKENS = Costs(copy_s=1, again_s=1, restart_s=30)
FIRST_S = 0.6  # by then everybody has joined
KINDS = ("calm", "frames", "connections", "processes", "aborts", "everything", "cuts")
MEMORY = ("plain", "shared", "shared", "starved", "both")

OF_CONNECTIONS = ("cut control", "cut peer", "cut data", "part", "slow", "full")
CUTS = ("cut peer", "cut peer", "cut data", "cut data", "cut control")
OF_RANKS = ("rank kill", "rank pause", "rank hang", "rank fail")
OF_PROCESSES = ("kill", "kill", "pause", "leave", "hang", "fail", "gateway pause", "gateway kill")


@dataclass(frozen=True)
class Arrival:
    """One request. Its client leaves at `leaves_at` (or only choice `leaves_choice`, -1: all), if that is not None."""

    name: str
    at: float
    prompt: tuple[int, ...]
    params: SamplingParams
    num_choices: int = 1
    leaves_at: float | None = None
    leaves_choice: int = -1
    cache_salt: str = ""
    priority: int = 0
    prompt_logprobs: PromptLogprobsAsked | None = None


@dataclass(frozen=True)
class Fault:
    """Something goes wrong; whom it hits is drawn from `seed` when it does."""

    at: float
    kind: str
    seed: str


@dataclass(frozen=True)
class Scenario:
    """Everything about a world."""

    seed: int
    kind: str
    num_prefills: int
    num_decodes: int
    page_size: int  # of prefill workers
    decode_page_size: int
    chunk_size: int
    num_tokens: int  # of each pool
    decode_tokens: int  # of each pool of a decode worker
    margin: int
    num_host_pages: int  # at a decode worker, for KV of preempted choices
    costs: Costs | None  # None: they all go there
    caches: tuple[Role, ...]  # whose workers keep KV
    memory: str  # what its requests do with it
    max_requests: int
    overlap: bool
    pairing: Pairing
    pace_s: float
    delay_s: float
    window_bytes: int
    frame_bytes: int
    gather_below: int
    job_tokens: int
    in_place: bool  # KV is written into decode's pages; frames are headers
    fate: FrameFate
    arrivals: tuple[Arrival, ...]
    faults: tuple[Fault, ...]
    flushes: tuple[float, ...] = ()  # when POST /flush_cache comes
    policies: Policies = DEFAULTS
    num_steps: int = 0  # tokens that the fake draft proposes; 0: there is no draft
    varied_steps: int | None = None  # the seed with which launches propose fewer; None: they all propose as many
    tree: tuple[int, int] = (1, 0)  # top-k and nodes, if the draft proposes trees
    num_layers: int = 1  # of the draft; if there are several, each proposes a token
    has_experts: bool = False  # the fake model's layers have some
    prefill_ranks: int = 0  # of a group beside the `num_prefills` workers; 0: there is none
    decode_ranks: int = 0
    collective_s: float = 30.0  # that a rank waits in a collective before it ends

    @property
    def over_at(self) -> float:
        """When nothing more is done to anybody; what was begun then ends a few seconds later."""
        begun = [arrival.at if arrival.leaves_at is None else arrival.leaves_at for arrival in self.arrivals]
        return max([*begun, *(fault.at for fault in self.faults), *self.flushes])

    @property
    def is_mild(self) -> bool:
        """Whether nothing happens that may fail a request or make another attempt necessary: at most, frames come late,
        out of order or twice, and clients leave."""
        return not self.faults and not self.fate.lost and not self.fate.damaged

    @property
    def breaks_only_connections(self) -> bool:
        """Whether what is lost is lost with a connection, which both ends notice, and with nothing else."""
        broken = {*CUTS, "part", "slow"}
        return {fault.kind for fault in self.faults} <= broken and not self.fate.lost and not self.fate.damaged

    def again_and_again(self, laps: int) -> "Scenario":
        """The same, whose requests come again each second; something may be tried twice."""
        arrivals = tuple(
            replace(each, name=f"{each.name}-{lap}", at=each.at + lap) for lap in range(laps) for each in self.arrivals
        )
        return replace(self, arrivals=arrivals, faults=(Fault(0.0, "slow", "s"),))

    @staticmethod
    def random(seed: int) -> "Scenario":
        """The world of a seed. Kinds take turns. Some have groups of ranks, in others workers sleep."""
        if seed >= FIRST_WITH_GROUPS and seed % 4 == 0:
            return Scenario.grouped(seed)
        if seed >= FIRST_WITH_GROUPS and seed % 4 == 2:
            return Scenario.sleeping(seed)
        return Scenario._drawn(seed)

    @staticmethod
    def sleeping(seed: int) -> "Scenario":
        """One in which workers are stopped until they are lost, also several at once, and wake. The same prompts come
        again then, and caches may have been flushed meanwhile."""
        rng = random.Random(f"sleep {seed}")
        world = Scenario._drawn(SLEEPING + seed)
        sleeps = tuple(_fault(rng, ("sleep",), 1.5) for _ in range(rng.choice((1, 1, 2, 3))))
        again = tuple(
            replace(each, name=f"{each.name}-again", at=each.at + rng.uniform(1.5, 6.0), leaves_at=None)
            for each in world.arrivals
        )
        flushes = tuple(rng.choice(sleeps).at + rng.uniform(1.9, 2.6) for _ in range(rng.choice((0, 1, 2))))
        return replace(
            world,
            arrivals=world.arrivals + again,
            faults=world.faults + sleeps,
            flushes=world.flushes + flushes,
            caches=rng.choice(((Role.PREFILL, Role.DECODE), (Role.PREFILL, Role.DECODE), (Role.DECODE,), ())),
        )

    @staticmethod
    def grouped(seed: int) -> "Scenario":
        """One with a group of 2 or 3 ranks as prefill, as decode, or one of each; maybe with a worker beside a group.
        In most of them ranks are killed, paused, or fail."""
        rng = random.Random(f"groups {seed}")
        world = Scenario._drawn(GROUPED + seed)
        has_prefill, has_decode = rng.choice(((True, False), (False, True), (True, True)))
        faults = world.faults
        if world.kind not in ("calm", "cuts"):
            faults += tuple(_fault(rng, OF_RANKS, 0.6) for _ in range(rng.choice((1, 1, 2))))
        return replace(
            world,
            faults=faults,
            has_experts=random.Random(f"experts {seed}").random() < 0.5,
            num_prefills=rng.choice((0, 0, 1)) if has_prefill else world.num_prefills,
            num_decodes=rng.choice((0, 0, 1)) if has_decode else world.num_decodes,
            prefill_ranks=rng.choice((2, 2, 3)) if has_prefill else 0,
            decode_ranks=rng.choice((2, 2, 3)) if has_decode else 0,
            collective_s=rng.choice((2.0, 30.0)),
        )

    @staticmethod
    def _drawn(seed: int) -> "Scenario":
        rng = random.Random(f"handoff {seed}")
        num_steps = random.Random(f"draft {seed}").choice((0, 1, 3)) if seed >= FIRST_WITH_DRAFT else 0
        tree = random_tree(seed, num_steps) if seed >= FIRST_WITH_TREES else (1, 0)
        num_layers = random_layers(seed) if seed >= FIRST_WITH_LAYERS and tree[0] == 1 and num_steps else 1
        if num_layers > 1:
            num_steps = min(num_steps, num_layers)
        kind = KINDS[seed % len(KINDS)]
        page_size = rng.choice((1, 4))
        page_bytes = page_size * 32
        arrivals = tuple(_arrival(rng, f"r{index}", kind) for index in range(rng.randint(4, 9)))
        num_tokens = rng.randint(2 * CONTEXT, 5 * CONTEXT)
        scenario = Scenario(
            seed=seed,
            kind=kind,
            num_prefills=rng.choice((1, 1, 2)),
            num_decodes=rng.choice((1, 1, 2)),
            page_size=page_size,
            decode_page_size=rng.choice((page_size, page_size, 1, 2, 4)),
            chunk_size=rng.choice((5, 9, 64)),
            num_tokens=num_tokens,
            decode_tokens=num_tokens,
            margin=0,
            num_host_pages=0,
            costs=None,
            caches=(),
            memory="plain",
            max_requests=rng.choice((3, 4, 6)),
            overlap=rng.random() < 0.8,
            pairing=rng.choice(("prefix_aware", "round_robin")),
            pace_s=rng.choice((0.002, 0.02, 0.1)),
            delay_s=0.05 if kind == "cuts" else rng.choice((0.001, 0.01, 0.05)),
            window_bytes=rng.choice((300, 1500, 6000)),
            frame_bytes=page_bytes * rng.choice((1, 2, 16)),
            gather_below=rng.choice((0, 64 * 1024)),
            job_tokens=rng.choice((1, 50, 500)),
            in_place=rng.random() < 0.5,
            fate=_fate(rng, kind),
            arrivals=arrivals,
            faults=_faults(rng, kind),
            num_steps=num_steps,
            varied_steps=seed if random.Random(f"varied {seed}").random() < 0.4 else None,
            tree=tree,
            num_layers=num_layers,
            has_experts=seed >= FIRST_WITH_DRAFT and random.Random(f"experts {seed}").random() < 0.2,
        )
        scenario = _remembering(random.Random(f"memory {seed}"), scenario)
        scenario = _scheduled(random.Random(f"policies {seed}"), scenario)
        rng = random.Random(f"logprobs {seed}")
        asks = rng.random() < 0.5
        arrivals = tuple(replace(each, params=asking(rng, each.params)) for each in scenario.arrivals)
        scenario = replace(scenario, arrivals=arrivals) if asks else scenario
        scenario = _ruled(random.Random(f"rules {seed}"), scenario) if seed >= FIRST_WITH_DRAFT else scenario
        scenario = _scored(random.Random(f"prompts {seed}"), scenario) if seed % 4 == 1 else scenario
        return _followed(random.Random(f"grammars {seed}"), scenario) if seed >= FIRST_WITH_GRAMMARS else scenario


def _arrival(rng: random.Random, name: str, kind: str) -> Arrival:
    num_tokens = rng.choice((1, 2, 5, 9) if kind != "aborts" else (2, 9, 30))
    params = SamplingParams(
        max_tokens=num_tokens,
        min_tokens=rng.choice((0, 0, 3)) if num_tokens > 3 else 0,
        temperature=HOT if rng.random() < 0.2 else 0.0,
        seed=rng.getrandbits(40),
        eos_token_ids=tuple(rng.sample(range(VOCAB), rng.choice((0, 0, 20)))),
    )
    num_choices = rng.choice((1, 1, 1, 2, 3)) if num_tokens < 30 else 1  # or it would not fit into a small pool
    at = FIRST_S + rng.random() * 0.8
    leaves = rng.random() < {"aborts": 0.7, "everything": 0.25}.get(kind, 0.0)
    return Arrival(
        name=name,
        at=at,
        prompt=tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, CONTEXT - num_tokens - 1))),
        params=params,
        num_choices=num_choices,
        leaves_at=at + rng.random() * rng.choice((0.15, 0.15, 0.8)) if leaves else None,
        leaves_choice=rng.choice((-1, -1, 0, num_choices - 1)),
    )


def _ruled(rng: random.Random, world: Scenario) -> Scenario:
    """The same with logit rules for some requests, in a third of the cases."""
    if rng.random() < 0.67:
        return world
    arrivals = tuple(
        replace(each, params=with_rules(rng, each.params, VOCAB)) if rng.random() < 0.6 else each
        for each in world.arrivals
    )
    return replace(world, arrivals=arrivals)


def _scored(rng: random.Random, world: Scenario) -> Scenario:
    """The same with log-probabilities of prompts for half of the requests."""
    arrivals = tuple(
        replace(each, prompt_logprobs=asking_prompt(rng, each.prompt)) if rng.random() < 0.5 else each
        for each in world.arrivals
    )
    return replace(world, arrivals=arrivals)


def _followed(rng: random.Random, world: Scenario) -> Scenario:
    """The same with grammars for some requests, in a quarter of the cases."""
    if rng.random() < 0.75:
        return world
    arrivals = tuple(
        replace(each, params=with_grammar(rng, each.params, VOCAB, range(1, 16))) if rng.random() < 0.6 else each
        for each in world.arrivals
    )
    return replace(world, arrivals=arrivals)


def _remembering(rng: random.Random, world: Scenario) -> Scenario:
    """The same with caches, margins and flushes. Requests may share prefixes, and a decode pool may hold hardly more
    than the largest of them: most are preempted, and may wait in host memory."""
    memory = rng.choice(MEMORY)
    arrivals = world.arrivals
    if memory in ("shared", "both"):
        families = [tuple(rng.randrange(VOCAB) for _ in range(CONTEXT)) for _ in range(2)]
        arrivals = tuple(_of_family(rng, each, rng.choice(families)) for each in arrivals)
        arrivals = tuple(_repeated(rng, each, arrivals) for each in arrivals)

    decode_tokens = world.decode_tokens
    if memory in ("starved", "both"):
        arrivals = tuple(_long(rng, each) for each in arrivals)
        lookahead = world.num_layers if world.num_steps else 0
        largest = max(_num_pages(each, world.decode_page_size, lookahead) for each in arrivals)
        decode_tokens = largest * world.decode_page_size + rng.randint(0, 12)

    roles = (Role.PREFILL, Role.DECODE)
    caches = tuple(role for role in roles if rng.random() < 0.7)
    num_flushes = rng.choice((0, 0, 1, 3))
    margin = rng.choice((0, 0, 2, 8))
    flushes = tuple(FIRST_S + rng.random() * 1.5 for _ in range(num_flushes))
    num_host_pages = rng.choice((0, 0, 20, 150)) // world.decode_page_size
    return replace(
        world,
        num_host_pages=num_host_pages and 2 + num_host_pages,
        costs=rng.choice((None, None, UP_TO_30_TOKENS)),
        memory=memory,
        arrivals=arrivals,
        decode_tokens=decode_tokens,
        margin=margin,
        caches=caches,
        flushes=flushes,
    )


def _scheduled(rng: random.Random, world: Scenario) -> Scenario:
    """The same with priorities, budgets and bounds, in half of the worlds."""
    if rng.random() < 0.5:
        return world
    arrivals = tuple(replace(each, priority=rng.choice((-100, -1, 0, 0, 1, 100))) for each in world.arrivals)
    return replace(world, arrivals=arrivals, policies=random_policies(rng))


def _of_family(rng: random.Random, arrival: Arrival, family: tuple[int, ...]) -> Arrival:
    """Its prompt begins as many others do."""
    prompt = (*family[: rng.randint(1, 30)], *arrival.prompt)[: CONTEXT - arrival.params.max_tokens - 1]
    at = FIRST_S + rng.random() * 1.6  # so that some find what others have left
    leaves_at = None if arrival.leaves_at is None else at + arrival.leaves_at - arrival.at
    return replace(arrival, prompt=prompt, at=at, leaves_at=leaves_at, cache_salt=rng.choice(("", "", "", "salt")))


def _repeated(rng: random.Random, arrival: Arrival, others: tuple[Arrival, ...]) -> Arrival:
    """Now and then the whole prompt of another."""
    if rng.random() < 0.7:
        return arrival
    return replace(arrival, prompt=rng.choice(others).prompt[: CONTEXT - arrival.params.max_tokens - 1])


def _long(rng: random.Random, arrival: Arrival) -> Arrival:
    """The same with more outputs, at about the same time as others."""
    params = replace(arrival.params, max_tokens=rng.randint(8, 24))
    at = FIRST_S + rng.random() * 0.2
    leaves_at = None if arrival.leaves_at is None else at + arrival.leaves_at - arrival.at
    prompt = arrival.prompt[: CONTEXT - params.max_tokens - 1]
    return replace(arrival, params=params, prompt=prompt, at=at, leaves_at=leaves_at)


def _num_pages(arrival: Arrival, page_size: int, lookahead: int) -> int:
    most = len(arrival.prompt) + arrival.params.max_tokens
    return pages_for_choices(len(arrival.prompt), most, arrival.num_choices, page_size, lookahead)


def _fate(rng: random.Random, kind: str) -> FrameFate:
    ordered = rng.random() < 0.4
    if kind not in ("frames", "everything"):
        return FrameFate(ordered)
    some = 0.02 if kind == "frames" else 0.005
    return FrameFate(
        ordered,
        lost=rng.choice((0.0, 2 * some)),
        twice=rng.choice((0.0, 5 * some, 20 * some)),
        damaged=rng.choice((0.0, 3 * some)),
    )


def _faults(rng: random.Random, kind: str) -> tuple[Fault, ...]:
    kinds = {
        "connections": OF_CONNECTIONS,
        "processes": OF_PROCESSES,
        "cuts": CUTS,
        "everything": (*OF_CONNECTIONS, *OF_PROCESSES),
    }.get(kind, ())
    if not kinds:
        return ()
    return tuple(_fault(rng, kinds) for _ in range(rng.randint(4, 12) if kind == "cuts" else rng.randint(1, 4)))


def _fault(rng: random.Random, kinds: Sequence[str], within_s: float = 1.5) -> Fault:
    return Fault(FIRST_S + rng.random() * within_s, rng.choice(kinds), f"fault {rng.getrandbits(40)}")
