"""What every process needs: sockets, sessions, clock, settings, logs, start and end. No torch."""
