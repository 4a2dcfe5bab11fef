"""Tests of transfer/."""
