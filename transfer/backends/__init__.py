"""The backends, one a file or folder. table.py opens them by name."""
