"""What every process needs, whatever its role: logging, settings, start and stop. No torch."""
