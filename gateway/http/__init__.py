"""HTTP itself: bounds of connections, requests that every server reads alike, errors as responses."""
