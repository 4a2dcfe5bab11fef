"""What holds for every test: one thread per process, no network hubs, reproducible property tests.

It runs before any test module is imported, and so before torch reads its environment.
"""

import os

from hypothesis import settings

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# Timings never decide a test (no deadline), and workers share no files (no example database).
settings.register_profile("quick", deadline=None, database=None, derandomize=True, max_examples=60)
settings.register_profile("thorough", deadline=None, database=None, max_examples=1000)
settings.load_profile("quick")
