"""A random deployment and the load on it: topology, sizes, arrivals, departures, launches that fail.

Everything follows from the seed. Pools are small, so rows and pages are reused at once, and the one freed last is used
first. run.py decides when device work runs.
"""

import random
from dataclasses import dataclass, replace

from protocol.kv_layout import pages_for_choices
from protocol.logprobs import LogprobsAsked, PromptLogprobsAsked
from protocol.messages_gateway import SamplingParams
from scheduler.planning.spills import Costs
from tests.decode.driving import VOCAB, prompt_of
from tests.explore.expected import expected
from tests.grammars import with_grammar
from tests.ruling import with_rules
from worker.policies import DEFAULTS, Policies

TOPOLOGIES = ("1U", "1P1D", "2P1D", "1P2D")
CONTEXT = 48
HOT = 20.0  # the fake's likeliest token has a score of 100, all others 0: at this temperature it is drawn 2 times in 5
NEVER = -1
WITH_DRAFT = (3, 6)  # of the seeds on which mutants are tried; most mutants need none
FIRST_WITH_DRAFT = 16
FIRST_WITH_TREES = 24
FIRST_WITH_LAYERS = 32
FIRST_WITH_RULES = 16
FIRST_WITH_GRAMMARS = 40
FIRST_WITH_PROMPT_LOGPROBS = 40
FIRST_WITH_EXPERTS = 16
FIRST_WITH_GROUPS = 100  # from here on every fourth seed has a group of ranks
UP_TO_30_TOKENS = Costs(copy_s=1, again_s=1, restart_s=30)  # go to host memory


@dataclass(frozen=True)
class Arrival:
    """One request. After `cancel_at` steps its client leaves, or only its choice `cancel_choice` (-1: all).

    `num_replayed` outputs are known from an earlier attempt; they count as the end of what is computed like a prompt.
    """

    name: str
    at_step: int
    prompt: tuple[int, ...]
    params: SamplingParams
    num_choices: int = 1
    cancel_at: int = NEVER
    cancel_choice: int = -1
    num_replayed: int = 0
    cache_salt: str = ""
    priority: int = 0
    prompt_logprobs: PromptLogprobsAsked | None = None

    def num_pages(self, page_size: int = 1, lookahead: int = 0) -> int:
        """An upper bound of what it needs."""
        most = len(self.prompt) + self.params.max_tokens
        return pages_for_choices(len(self.prompt), most, self.num_choices, page_size, lookahead)


@dataclass(frozen=True)
class Workload:
    """What happens, but not when device work runs. `failing` is how likely a forward raises, `unbuilt` a launch cannot
    be built. All workers of each kind in `groups` ("U", "P", "D", "PD") are the ranks of one group. Requests go to the
    first `num_served` workers of each kind only."""

    topology: str
    page_size: int
    chunk_size: int
    num_pages: int
    max_requests: int
    overlap: bool
    arrivals: tuple[Arrival, ...]
    failing: float = 0.0
    caches: bool = False
    margin: int = 0
    policies: Policies = DEFAULTS
    num_host_pages: int = 0  # for KV of preempted choices
    costs: Costs | None = None  # None: they all go there
    num_steps: int | None = None  # that a draft proposes; None: there is no draft
    varied_steps: int | None = None  # the seed with which launches propose fewer; None: they all propose as many
    tree: tuple[int, int] = (1, 0)  # top-k and nodes, if the draft proposes trees
    num_layers: int = 1  # of the draft; if there are several, each proposes a token
    groups: str = ""
    num_served: int | None = None
    unbuilt: float = 0.0
    late_masks: float = 1.0  # the chance that masks of grammars are there when they are looked for
    has_experts: bool = False  # the fake model's layers have some
    slow_masks: float = 0.0  # the chance that one takes so much work that its row sits out the next launch

    @property
    def group_sizes(self) -> dict[str, int]:
        """Ranks of each group, by the kind of worker."""
        counts = zip(self.topology[::2], self.topology[1::2], strict=True)
        return {kind: int(count) for count, kind in counts if kind in self.groups}

    @staticmethod
    def random(seed: int, num_requests: int = 7) -> "Workload":
        """A small one: a few requests, about a hundred steps. Six kinds take turns, and some have groups of ranks."""
        if seed >= FIRST_WITH_GROUPS and seed % 4 == 0:
            return Workload.grouped(seed, num_requests)
        workload = _scheduled(random.Random(f"policies {seed}"), Workload._of_kind(seed, num_requests))
        if seed >= FIRST_WITH_RULES:
            workload = _ruled(random.Random(f"rules {seed}"), workload)
        workload = _scored(random.Random(f"logprobs {seed}"), workload)
        has_draft = random.Random(f"draft {seed}").random() < 0.4 if seed >= FIRST_WITH_DRAFT else seed in WITH_DRAFT
        workload = workload.with_draft(seed) if has_draft else workload
        if seed >= FIRST_WITH_PROMPT_LOGPROBS:
            workload = with_scored_prompts(random.Random(f"prompts {seed}"), workload, 0.2)
        if seed >= FIRST_WITH_EXPERTS:
            workload = _with_experts(seed, workload, 0.2)
        return _followed(random.Random(f"grammars {seed}"), workload) if seed >= FIRST_WITH_GRAMMARS else workload

    @staticmethod
    def _of_kind(seed: int, num_requests: int) -> "Workload":
        rng = random.Random(f"workload {seed}")
        turn, kind = divmod(seed, 6)
        failing = 0.08 if turn % 2 else 0.0
        if kind == 0:
            return _mixture(rng, num_requests, "1U", failing)
        if kind == 1:
            return _mixture(rng, num_requests, rng.choice(TOPOLOGIES[1:]), failing)
        if kind == 2:
            return _pressure(rng, num_requests)
        if kind == 4:
            return _prefixes(rng, 2 * num_requests, TOPOLOGIES[(1 - turn) % len(TOPOLOGIES)], failing)  # a pair first
        if kind == 5:
            return _starved(rng, num_requests, TOPOLOGIES[(1 - turn) % len(TOPOLOGIES)], failing)
        return _mixture(rng, num_requests, TOPOLOGIES[turn % len(TOPOLOGIES)], failing, forks=True)

    @staticmethod
    def grouped(seed: int, num_requests: int = 7) -> "Workload":
        """The same kinds with groups of 2, 3 or 4 ranks: unified, or on either side of the hand-over, or on both. Idle
        for long, or with requests for some ranks only; forwards that break a group, launches that cannot be built."""
        rng = random.Random(f"groups {seed}")
        workload = _scheduled(random.Random(f"policies {seed}"), Workload._of_kind(seed, num_requests))
        workload = _ruled(random.Random(f"rules {seed}"), workload)
        if rng.random() < 0.5:
            workload = workload.with_draft(1000 + seed)
        workload = with_scored_prompts(random.Random(f"prompts {seed}"), workload, 0.2)
        workload = _followed(random.Random(f"grammars {seed}"), workload)
        workload = _with_experts(seed, workload, 0.5)
        size = rng.choice((2, 2, 3, 4))
        groups = rng.choice(("U", "U", "U", "P", "D", "PD"))
        groups = "PD" if workload.topology != "1U" and groups == "U" and seed % 6 == 2 else groups  # KV lands
        num_prefills, num_decodes = (size if kind in groups else 1 for kind in "PD")

        pauses = rng.choice(((0,), (0, 60), (0, 0, 100, 300)))
        arrivals = tuple(replace(each, at_step=each.at_step + rng.choice(pauses)) for each in workload.arrivals)
        return replace(
            workload,
            topology=f"{size}U" if groups == "U" else f"{num_prefills}P{num_decodes}D",
            arrivals=arrivals,
            groups=groups,
            num_served=rng.choice((None, None, 1, 2)),
            failing=rng.choice((0.0, 0.01, 0.03)),
            unbuilt=rng.choice((0.0, 0.0, 0.05)),
        )

    @staticmethod
    def spilling(seed: int) -> "Workload":
        """Requests that run to their limits, in a pool for about one of them and host memory for all."""
        rng = random.Random(f"spilling {seed}")
        workload = _starved(rng, 7, TOPOLOGIES[seed % 4], 0.0 if seed % 3 else 0.02)
        endless = [replace(each.params, eos_token_ids=(), min_tokens=0) for each in workload.arrivals]
        arrivals = [
            replace(each, params=params, num_choices=1 + index % 2)
            for index, (each, params) in enumerate(zip(workload.arrivals, endless, strict=True))
        ]
        largest = max(each.num_pages(workload.page_size) for each in arrivals)
        num_pages, num_host_pages = 1 + largest + rng.randint(0, 2), 1 + 20 * CONTEXT // workload.page_size
        return replace(
            workload, arrivals=tuple(arrivals), num_pages=num_pages, num_host_pages=num_host_pages, costs=None
        )

    def with_draft(self, seed: int) -> "Workload":
        """The same with a draft. Half of the requests may run to their limits; answers in a grammar end with EOS."""
        rng = random.Random(f"steps {seed}")
        endless = [rng.random() < 0.5 and not each.params.grammar for each in self.arrivals]
        arrivals = tuple(
            replace(each, params=replace(each.params, eos_token_ids=())) if is_endless else each
            for each, is_endless in zip(self.arrivals, endless, strict=True)
        )
        num_steps = rng.choice((0, 1, 2, 3, 3, 5))
        varied_steps = seed if rng.random() < 0.4 else None
        tree = random_tree(seed, num_steps) if seed >= FIRST_WITH_TREES else (1, 0)
        num_layers = random_layers(seed) if seed >= FIRST_WITH_LAYERS and tree[0] == 1 else 1
        if num_layers > 1:
            num_steps = min(num_steps, num_layers)
        largest = max(each.num_pages(self.page_size, num_layers) for each in arrivals)
        changed = replace(self, arrivals=arrivals, num_pages=max(self.num_pages, 1 + largest), num_layers=num_layers)
        return replace(changed, num_steps=num_steps, varied_steps=varied_steps, tree=tree)

    def without_overlap(self) -> "Workload":
        """The same, in the serial twin."""
        return replace(self, overlap=False)


def random_tree(seed: int, num_steps: int) -> tuple[int, int]:
    """Top-k and nodes; every second draft with steps proposes trees."""
    rng = random.Random(f"tree {seed}")
    if rng.random() < 0.5 or not num_steps:
        return 1, 0
    topk = rng.choice((2, 2, 3, 5))
    return topk, rng.randint(2, min(64, 1 + topk + (num_steps - 1) * topk * topk))


def random_layers(seed: int) -> int:
    """Draft layers; every second draft has several."""
    return random.Random(f"layers {seed}").choice((1, 1, 2, 3))


def _with_experts(seed: int, workload: Workload, share: float) -> Workload:
    """The same with experts in the model, in such a share of the cases."""
    return replace(workload, has_experts=random.Random(f"experts {seed}").random() < share)


def _scheduled(rng: random.Random, workload: Workload) -> Workload:
    """The same with priorities, budgets and bounds, in half of the cases."""
    if rng.random() < 0.5:
        return workload
    arrivals = tuple(replace(each, priority=rng.choice((-100, -1, 0, 0, 1, 100))) for each in workload.arrivals)
    return replace(workload, arrivals=arrivals, policies=random_policies(rng))


def _ruled(rng: random.Random, workload: Workload) -> Workload:
    """The same with logit rules for some requests, in a third of the cases."""
    if rng.random() < 0.67:
        return workload
    arrivals: list[Arrival] = []
    for arrival in workload.arrivals:
        if rng.random() < 0.6:
            ruled = replace(arrival, params=with_rules(rng, arrival.params, VOCAB), num_replayed=0)
            arrival = _replayed(rng, ruled) if arrival.num_replayed else ruled
        arrivals.append(arrival)
    return replace(workload, arrivals=tuple(arrivals))


def _scored(rng: random.Random, workload: Workload) -> Workload:
    """The same with log-probabilities for some requests, in half of the cases."""
    if rng.random() < 0.5:
        return workload
    arrivals = tuple(replace(each, params=asking(rng, each.params)) for each in workload.arrivals)
    return replace(workload, arrivals=arrivals)


def asking(rng: random.Random, params: SamplingParams) -> SamplingParams:
    """The same; it may ask for log-probabilities."""
    asked = rng.choice((None, LogprobsAsked(rng.choice((0, 1, 5))), LogprobsAsked(3, processed=True)))
    return replace(params, logprobs=asked)


def with_scored_prompts(rng: random.Random, workload: Workload, share: float) -> Workload:
    """The same with log-probabilities of prompts for most requests, in such a share of the cases. Some ask for a part,
    as another attempt does."""
    if rng.random() >= share:
        return workload
    arrivals = tuple(
        replace(each, prompt_logprobs=asking_prompt(rng, each.prompt)) if rng.random() < 0.7 else each
        for each in workload.arrivals
    )
    return replace(workload, arrivals=arrivals)


def asking_prompt(rng: random.Random, prompt: tuple[int, ...]) -> PromptLogprobsAsked:
    """Log-probabilities of all tokens of a prompt, or of the last ones."""
    start = rng.choice((1, 1, 1, rng.randint(1, len(prompt))))
    return PromptLogprobsAsked(rng.choice((0, 1, 3)), start)


def _followed(rng: random.Random, workload: Workload) -> Workload:
    """The same with grammars for some requests, in a quarter of the cases."""
    if rng.random() < 0.75:
        return workload
    arrivals: list[Arrival] = []
    for arrival in workload.arrivals:
        if rng.random() < 0.6:
            params = with_grammar(rng, arrival.params, VOCAB, range(1, 16))
            followed = replace(arrival, params=params, num_replayed=0)
            arrival = _replayed(rng, followed) if arrival.num_replayed else followed
        arrivals.append(arrival)
    late, slow = rng.choice((0.1, 0.5, 1.0)), rng.choice((0.0, 0.1, 0.5))
    return replace(workload, arrivals=tuple(arrivals), late_masks=late, slow_masks=slow)


def random_policies(rng: random.Random) -> Policies:
    """How a worker may schedule. Now and then it lets very few requests wait."""
    return Policies(
        schedule_policy=rng.choice(("fcfs", "lpm")),
        max_queued_requests=rng.choice((1, 2, 2048, 2048, 2048, 2048)),
        max_prefill_tokens=rng.choice((None, 3, 20, 100)),
        mixed_chunk_size=rng.choice((None, None, 5, 40)),
        enable_mixed_chunk=rng.random() < 0.7,
    )


def _mixture(rng: random.Random, num_requests: int, topology: str, failing: float, forks: bool = False) -> Workload:
    """Requests of any kind; with `forks` of several choices that end one after the other."""
    page_size = rng.choice((1, 4))
    arrivals = tuple(_arrival(rng, f"{rng.getrandbits(32)}") for _ in range(num_requests))
    if forks:
        arrivals = tuple(_forked(rng, f"{rng.getrandbits(32)}") for _ in range(num_requests))
    longest = 3 * CONTEXT // page_size
    return Workload(
        topology=topology,
        page_size=page_size,
        chunk_size=rng.choice((5, 9, 64)),
        num_pages=1 + rng.randint(longest // 2, longest),
        max_requests=rng.choice((3, 4, 6)),
        overlap=rng.random() < 0.9,
        arrivals=arrivals,
        failing=failing,
    )


def _pressure(rng: random.Random, num_requests: int) -> Workload:
    """Two that decode for long, and short ones that come and go beside them: the KV of the next lands in what the last
    has just given back, while a launch that still knows the former owner waits to run."""
    long = tuple(_arrival(rng, f"{rng.getrandbits(32)}", num_tokens=24, eos=0, at_most=3) for _ in range(2))
    short = tuple(_arrival(rng, f"{rng.getrandbits(32)}", num_tokens=9, eos=60) for _ in range(num_requests - 2))
    long = tuple(replace(each, cancel_at=NEVER, num_choices=1) for each in long)
    page_size = rng.choice((1, 4))
    needed = sum(each.num_pages() for each in long) + max((each.num_pages() for each in short), default=0)
    return Workload(
        topology=rng.choice(TOPOLOGIES[1:]),
        page_size=page_size,
        chunk_size=rng.choice((9, 64)),
        num_pages=-(-needed // page_size) + rng.randint(4, 12),
        max_requests=rng.choice((4, 5)),
        overlap=True,
        arrivals=long + short,
    )


def _prefixes(rng: random.Random, num_requests: int, topology: str, failing: float) -> Workload:
    """Prompts of two families, in a pool so small that the cache drops pages all the time. Some come again as a whole,
    and some ask for a part of the cache of their own."""
    workload = _mixture(rng, num_requests, topology, failing)
    families = [tuple(prompt_of(f"{rng.getrandbits(32)}", CONTEXT)) for _ in range(2)]

    arrivals: list[Arrival] = []
    for arrival in workload.arrivals:
        start = rng.choice(families)[: rng.randint(1, 30)]
        prompt = (*start, *arrival.prompt)[: CONTEXT - arrival.params.max_tokens - 1]
        if arrivals and rng.random() < 0.3:
            prompt = rng.choice(arrivals).prompt[: len(prompt)]
        salt, at_step = rng.choice(("", "", "", "salt")), rng.randrange(80)
        arrivals.append(replace(arrival, prompt=prompt, num_replayed=0, cache_salt=salt, at_step=at_step))

    largest = max(each.num_pages(workload.page_size) for each in arrivals)
    num_pages = 1 + largest + rng.randint(0, CONTEXT // workload.page_size)
    return replace(workload, arrivals=tuple(arrivals), num_pages=num_pages, caches=True)


def _starved(rng: random.Random, num_requests: int, topology: str, failing: float) -> Workload:
    """Requests that grow, in a pool that holds hardly more than the largest of them: most are preempted. They begin
    again, or wait in host memory, which may be too small as well."""
    workload = _mixture(rng, num_requests, topology, failing)
    arrivals: list[Arrival] = []
    for arrival in workload.arrivals:
        params = replace(arrival.params, max_tokens=rng.randint(10, 30))
        prompt = arrival.prompt[: CONTEXT - params.max_tokens - 1]
        arrivals.append(replace(arrival, prompt=prompt, params=params, num_replayed=0, at_step=rng.randrange(8)))

    largest = max(each.num_pages(workload.page_size) for each in arrivals)
    num_pages = 1 + largest + rng.randint(0, 12 // workload.page_size)
    margin, caches = rng.choice((0, 0, 2, 8)), rng.random() < 0.3
    workload = replace(workload, arrivals=tuple(arrivals), num_pages=num_pages, margin=margin, caches=caches)

    num_host_pages = rng.choice((0, 2 + CONTEXT // workload.page_size, 1 + 8 * CONTEXT // workload.page_size))
    return replace(workload, num_host_pages=num_host_pages, costs=rng.choice((None, None, UP_TO_30_TOKENS)))


def _arrival(rng: random.Random, name: str, num_tokens: int = 0, eos: int | None = None, at_most: int = 25) -> Arrival:
    num_tokens = num_tokens or rng.choice((1, 2, 5, 9, 9))
    num_eos = rng.choice((0, 12, 40)) if eos is None else eos
    hot = rng.random() < 0.5
    params = SamplingParams(
        max_tokens=num_tokens,
        min_tokens=rng.choice((0, 0, 0, 3)) if num_tokens > 3 else 0,
        temperature=HOT if hot else 0.0,
        top_k=rng.choice((0, 0, 50)),
        seed=rng.getrandbits(40),
        eos_token_ids=tuple(rng.sample(range(VOCAB), num_eos)),
    )
    prompt = tuple(prompt_of(name, rng.randint(1, CONTEXT - num_tokens - 1)))
    num_choices = rng.choice((1, 1, 1, 2, 3))
    arrival = Arrival(
        name=name,
        at_step=rng.randrange(at_most),
        prompt=prompt,
        params=params,
        num_choices=num_choices,
        cancel_at=rng.randrange(12) if rng.random() < 0.25 else NEVER,
        cancel_choice=rng.choice((-1, -1, 0, num_choices - 1)),
    )
    return _replayed(rng, arrival) if num_choices == 1 and rng.random() < 0.2 else arrival


def _forked(rng: random.Random, name: str) -> Arrival:
    """Two or three choices that EOS ends at different tokens."""
    arrival = _arrival(rng, name, num_tokens=9, eos=40)
    params = replace(arrival.params, temperature=HOT)
    return replace(arrival, params=params, num_choices=rng.choice((2, 3)), num_replayed=0)


def _replayed(rng: random.Random, arrival: Arrival) -> Arrival:
    """The same as a second attempt, if it has outputs to be replayed."""
    tokens, _ = expected(arrival.prompt, arrival.params, 0)
    most = min(len(tokens), len(arrival.prompt) + 1) - 1
    return replace(arrival, num_replayed=rng.randint(0, most)) if most > 0 else arrival
