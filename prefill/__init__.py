"""The prefill worker: computes prompts, sends their KV."""
