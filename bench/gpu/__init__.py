"""`make gpu`: the steps that measure a GPU machine in 15 minutes."""
