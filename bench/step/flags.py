"""Flags that parts of bench.step share."""

import argparse
from pathlib import Path

from bench.step.decoding import Plan
from loadtest.bench_model import bench_model


def count(text: str) -> int:
    """A number of the command line, at least 1."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"got {text}, expected at least 1")
    return value


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
