"""The words of the gateway: what a client asks for, its places and faults, prompts, events of answers, limits."""
