"""KV that decode reads from prefill's pages, by RDMA if the machine has it."""
