"""Measurements of Baton's inner parts. They import every room, and only a checkout has them."""

import os

from runtime.processor import product_environment

os.environ.update(product_environment())
