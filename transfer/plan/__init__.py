"""What is moved: which pages in which frames, and which bytes of them go where."""
