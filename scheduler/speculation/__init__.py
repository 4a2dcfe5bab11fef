"""What a launch with a draft computes, by draft mode."""
