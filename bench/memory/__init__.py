"""What growing contexts and prefix caches save and cost."""
