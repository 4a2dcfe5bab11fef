"""KV that decode reads out of prefill's pages, by RDMA where there is some."""
