"""Channels of an answer: what of a choice's text and markers is text, reasoning, or a call of a tool."""
