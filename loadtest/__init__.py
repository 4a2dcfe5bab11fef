"""`baton bench`: a load on any endpoint and its report; Baton beside a peer."""
