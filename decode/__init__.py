"""The decode worker: reserves pages, lands KV, decodes."""
