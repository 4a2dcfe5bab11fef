"""A small trace in Mooncake's format, conversation.jsonl, and the script that makes it: python -m bench.trace."""
