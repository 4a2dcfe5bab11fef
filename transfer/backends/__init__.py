"""One file or folder for each backend that needs its own."""
