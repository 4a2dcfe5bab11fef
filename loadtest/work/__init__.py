"""What is asked, and when: arrivals, lengths, conversations, traces. Pure."""
