"""`baton bench`: a load on any endpoint and its report; one deployment beside another."""
