"""Launches with a draft: an object per mode, with `build`, `propose`, `verify` and `extend`."""
