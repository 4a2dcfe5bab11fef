"""`python -m bench.step PART`: what a decode step costs. Sides take turns; figures are medians of rounds.

    overlap    a step's forward alone, with overlap, serial; what requests ask for; the host's part
    asks       CPU time that each thing a request may ask for adds to a step, or that a commit adds to all
    spec       what a speculative launch costs beside a step, and tokens a second with a draft and without
    ranks      what a group of ranks costs beside one rank, and what agreeing on a step costs
    experts    a forward of a mixture of experts beside a dense model, and beside transformers
    grammar    a step of which none, some or all rows follow a grammar; what compiling takes

The process has the environment of a worker with all cores. The last line of output is one JSON object. On a GPU, `make
gpu STEP=decode` measures a step.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

import torch

from bench.sheet import Printed
from bench.step import asks, experts, grammar, overlap, ranks, spec
from runtime.process_life import thread_environment

AS_WORKER = "BATON_BENCH_AS_WORKER"  # in the environment: this process has been started as a worker is
PARTS = {"overlap": overlap, "asks": asks, "spec": spec, "ranks": ranks, "experts": experts, "grammar": grammar}


def run_as_worker() -> int:
    """Runs this program with the environment of a worker that has all cores. Returns its exit status."""
    if os.environ.pop(AS_WORKER, None) is not None:  # servers that this process starts refuse the variable
        return main()
    environment = thread_environment(len(os.sched_getaffinity(0))) | {AS_WORKER: "1"}
    return subprocess.call([sys.executable, "-m", "bench.step", *sys.argv[1:]], env=os.environ | environment)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m bench.step", description=__doc__.partition("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    for name, part in PARTS.items():
        part.flags(parts.add_parser(name, description=(part.__doc__ or "").partition("\n")[0]))
    asked = parser.parse_args(argv)

    sys.setswitchinterval(1e-4)  # as a worker does
    torch.set_num_threads(1)
    sheet = Printed(asked.part)
    PARTS[asked.part].measure(asked, sheet)
    return sheet.end()


if __name__ == "__main__":
    raise SystemExit(run_as_worker())
