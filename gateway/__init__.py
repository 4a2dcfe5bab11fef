"""HTTP, text, pairing, membership, retries. No torch."""
