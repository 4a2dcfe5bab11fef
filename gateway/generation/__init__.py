"""One client request between its tokens and the workers: prepared, started, followed until its end."""
