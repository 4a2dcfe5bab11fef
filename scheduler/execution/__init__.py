"""Runs plans on one device: batches, FutureMap, streams, the launch. It knows planning/ by plans only."""
