"""Decides: rows, pages, caches, preemption, what runs next. It never imports torch."""
