"""A long run of mixed load with faults, and what must hold all the while."""
