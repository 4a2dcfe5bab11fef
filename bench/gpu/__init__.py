"""`make gpu`: seven steps that measure a GPU machine in 25 minutes."""
