"""The application: all routes together, the pages about them, and metrics."""
