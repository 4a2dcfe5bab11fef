"""What runs any worker as a process: its start, its loop, and what it says to the gateway."""
