"""Decides: rows, pages, caches, retraction, what runs next. It never imports torch."""
