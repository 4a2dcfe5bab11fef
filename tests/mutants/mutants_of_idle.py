"""Sabotages of launches without rows, and of padding in the place of what cannot be launched."""

from tests.mutants.mutant import Mutant

PADDING = "tests/scheduler/execution/test_launches_padding.py"
DRAFTS = "tests/scheduler/speculation/test_draft_launches_idle.py"
LOOP = "tests/scheduler/planning/test_overlap_loop_idle.py"

IDLE = (
    Mutant(
        "a failure in the target's forward of a group does not break it",
        "failures_of_target",
        "device.group_error = __why",
        "",
        "the other ranks are within a collective that this one never enters",
        tests=(PADDING,),
    ),
    Mutant(
        "a success without requests forgets failures",
        "OverlapLoop._process",
        "self._failures.count and launched.reqs",
        "self._failures.count",
        "a worker whose every request fails counts as well, as long as others have work",
        tests=(LOOP,),
    ),
    Mutant(
        "padding writes a page of somebody",
        "model/inputs.py padding",
        "ModelInput(..., slots_T=__slots)",
        "ModelInput(..., slots_T=__slots + page_size)",
        "a request of this rank reads what a failed launch of another left there",
        tests=(PADDING,),
    ),
    Mutant(
        "the layers of padding are reported",
        "PlainLaunches.compute",
        "device.runner.forward(launch.padding(device), device.kv)",
        "device.runner.forward(launch.padding(device), device.kv, partial(self._shipping.layer_written, launch))",
        "prefill sends pages that no launch has written",
        tests=(PADDING,),
    ),
    Mutant(
        "a launch need not have the size that it announced",
        "Launch.check_size",
        "assert size == __wanted, __said",
        "",
        "the ranks of a group have padded to another size",
        tests=(PADDING,),
    ),
    Mutant(
        "a rank without rows puts off the draft's KV of nothing",
        "Unwritten.add",
        "not inp.num_decodes",
        "False",
        "it is idle for hours, and no launch writes what gathers",
        tests=(DRAFTS,),
    ),
)
