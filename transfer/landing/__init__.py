"""The receiver of a decode worker."""
