"""`make bench-gateway`: the cost of the gateway alone, many streams beside long prompts, and calls of tools."""
