"""Flags that parts of bench.step share."""

import argparse
from pathlib import Path

from bench.step.decoding import Plan
from loadtest.bench_flags import at_least
from loadtest.bench_model import bench_model

count = at_least(1)  # reads a number of the command line


def add_plan(parser: argparse.ArgumentParser, context: int, steps: int, rounds: int) -> None:
    """The model, and how much is measured, with these defaults."""
    parser.add_argument("--model", default="", help="checkpoint folder (default: 29M parameters, Qwen3's shape)")
    parser.add_argument("--context", type=count, default=context, help=f"prompt tokens (default {context})")
    parser.add_argument("--steps", type=count, default=steps, help=f"decode steps of a round (default {steps})")
    parser.add_argument("--rounds", type=count, default=rounds, help=f"rounds of each side, in turn (default {rounds})")


def plan_of(asked: argparse.Namespace) -> Plan:
    """What is measured."""
    return Plan(asked.context, asked.steps, asked.rounds)


def model_of(asked: argparse.Namespace) -> Path:
    """The folder of the model."""
    return Path(asked.model or bench_model()).resolve()
