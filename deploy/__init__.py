"""The `baton` command: options, processes and groups of them, supervision; what holds them on a Ray cluster."""
