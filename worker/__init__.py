"""What runs any worker as a process: its start, its loop, and its messages to the gateway."""
