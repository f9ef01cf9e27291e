"""Read models of the pages and lists."""
