"""`make gpu`: eight steps that measure a GPU machine in 15 minutes."""
