"""`baton verify`: whether a server's answers are right. Its judge is the soak's, too."""
