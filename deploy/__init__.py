"""The baton command: starting, joining and stopping processes."""
