"""A worker that serves the model of hashes with large KV, 8 KiB a token: python -P large_worker.py ROOM --settings ...

In everything else it is like any other worker.
"""

import runpy
import sys
from functools import partial

from model.fake import FakeRunner
from worker import boot

NUM_LAYERS, HEAD_DIM = 16, 64  # many layers, because a forward takes memory for one of them at a time

if __name__ == "__main__":
    vars(boot)["FakeRunner"] = partial(FakeRunner, num_layers=NUM_LAYERS, head_dim=HEAD_DIM)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__")
