"""OpenAI's API: completions and chats."""
