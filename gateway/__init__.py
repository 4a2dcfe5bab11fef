"""The gateway: the OpenAI-shaped HTTP front and its routing; no torch."""
