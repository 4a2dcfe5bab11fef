"""Text and token ids: the tokenizer, chat templates, detokenizers, stop strings."""
