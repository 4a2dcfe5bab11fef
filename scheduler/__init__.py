"""Decides what a launch computes and who owns rows and pages, runs the overlap loop, and computes drafts."""
