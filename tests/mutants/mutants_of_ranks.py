"""Sabotages of ranks that serve: how they meet, agree on steps and notice one another's end."""

from tests.mutants.mutant import Mutant

LOOP = ("tests/worker/test_loop_group.py",)
WATCH = ("tests/worker/test_group_watch.py",)
MEETING = ("tests/model/test_group_meeting.py",)
SOCKETS = ("tests/worker/test_rank_sockets.py",)

RANKS = (
    Mutant(
        "an all-idle group spins",
        "Planner.launch_idle",
        "if not self.is_called: ...",
        "",
        "every rank launches nothing, again and again",
        (),
        LOOP,
    ),
    Mutant(
        "a silent rank is never noticed",
        "GroupWatch._check_silence",
        "rank in self._beats and silence_s >= SILENCE_S",
        "False",
        "the others wait for it in a collective",
        (),
        WATCH,
    ),
    Mutant(
        "silence counts while this process was paused",
        "GroupWatch.look",
        "if was_paused: ...",
        "",
        "a busy machine ends its groups",
        (),
        WATCH,
    ),
    Mutant(
        "a rank that computes is late",
        "GroupWatch._check_rows",
        "rank in beats and not beats[rank].running",
        "rank in beats",
        "a long prompt ends the group",
        (),
        WATCH,
    ),
    Mutant(
        "a row of another epoch is taken",
        "RankSockets._read",
        "place.epoch != self.place.epoch",
        "False",
        "a rank of an earlier start decides what is launched now",
        (),
        SOCKETS,
    ),
    Mutant(
        "ranks of different models are a group",
        "RankSockets.meet",
        "_check_alike(own, hellos.popleft())",
        "hellos.popleft()",
        "each adds its part of another model",
        (),
        SOCKETS,
    ),
    Mutant(
        "what a rank says that serves already is lost",
        "RankSockets._missing",
        "self._early.append(message)",
        "pass",
        "its first step is never agreed",
        (),
        SOCKETS,
    ),
    Mutant(
        "a worker of a broken group waits for its forward",
        "close_all",
        "if not waits: ...",
        "",
        "the forward waits for a rank that has ended",
        (),
        ("tests/worker/test_ending.py",),
    ),
    Mutant(
        "two ranks on one GPU are a group",
        "open_collectives",
        "check_gpus(...)",
        "...",
        "NCCL refuses them in words of its own, or hangs",
        (),
        MEETING,
    ),
    Mutant(
        "only neighbours are compared",
        "check_gpus",
        "(first := ids.index(each)) != rank",
        "rank and (first := ids.index(each)) == rank - 1",
        "ranks 0 and 2 share a GPU",
        (),
        MEETING,
    ),
    Mutant(
        "a GPU is known by its number",
        "gpu_id",
        "str(torch.cuda.get_device_properties(device).uuid)",
        "str(device)",
        "ranks that each see their own GPU as number 0 are refused",
        (),
        MEETING,
    ),
)
