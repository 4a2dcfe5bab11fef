"""`make bench-gateway`: the cost of the gateway alone, and many streams beside long prompts."""
