"""The account of a run for people: a summary, a page with charts, and the lines printed at the end."""
