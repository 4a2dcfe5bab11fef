"""`make gpu`: steps that measure a GPU machine in 15 minutes."""
