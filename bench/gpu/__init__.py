"""What `make gpu` does: seven steps that use a GPU machine well in 25 minutes."""
