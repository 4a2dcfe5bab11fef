"""A worker that serves the model of hashes with large KV, 8 KiB a token: python -P large_worker.py ROOM --settings ...

What it does not know: anything else; it is as any other worker.
"""

import runpy
import sys
from functools import partial

from model.fake import FakeRunner
from scheduler import boot

NUM_KV_HEADS, HEAD_DIM = 8, 64

if __name__ == "__main__":
    vars(boot)["FakeRunner"] = partial(FakeRunner, num_kv_heads=NUM_KV_HEADS, head_dim=HEAD_DIM)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__")
