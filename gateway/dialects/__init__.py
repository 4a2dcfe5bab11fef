"""The APIs that clients speak. Each reads bodies and writes answers; none knows another."""
