"""What is moved: which pages in which frames, and where their bytes go."""
