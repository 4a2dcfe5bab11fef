"""What people look at: the live display, tables, files, the page."""
