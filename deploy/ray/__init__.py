"""Baton as one application of Ray Serve; `deploy.ray:app` is what a Serve config file names."""

from deploy.ray.application import app as app
