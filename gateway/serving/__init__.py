"""What all APIs share of a request's way: reading its body, admitting it, writing its answer."""
