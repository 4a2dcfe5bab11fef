"""Workers: which ones serve, which get a request, what each tells, and what follows when one is lost."""
