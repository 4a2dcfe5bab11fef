"""Words that two processes share: messages, frames, errors. No torch, no zmq."""
