"""The process of one worker."""
