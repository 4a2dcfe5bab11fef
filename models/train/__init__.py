"""Makes the bundled model: writes its text, trains its tokenizer and weights, measures the result."""
