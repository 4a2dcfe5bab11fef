"""What the answers say: records of requests, figures, verdicts, intervals. Pure."""
