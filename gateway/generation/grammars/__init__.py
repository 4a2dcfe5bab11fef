"""Grammars that answers follow: written for llguidance, made exact, and tried before any worker gets them."""
