"""Runs plans on one device: batches, FutureMap, streams, launches."""
