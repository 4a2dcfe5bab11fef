"""Runs any worker as a process: start, loop, outbox. The roles bring the decisions."""
