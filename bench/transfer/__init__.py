"""`make bench-transfer`: how fast KV moves between two processes, beside what the machine can do."""
