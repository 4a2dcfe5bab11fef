"""`make bench-gateway`: what the gateway costs by itself, and many streams beside long prompts."""
