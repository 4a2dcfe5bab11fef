"""What every process needs whatever its role: logging, settings, start and stop; no torch."""
