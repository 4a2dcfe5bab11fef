"""Measures one part of Baton beside its limit, runs the soak, and runs a GPU machine; only a checkout has it."""

import os

from runtime.processor import product_environment

os.environ.update(product_environment())
