"""How a worker's step is decided and launched, for every role."""
