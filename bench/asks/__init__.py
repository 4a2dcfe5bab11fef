"""`make bench-asks`: what each thing that a request may ask for costs."""
