"""Each stage's ceiling, measured alone, and the search for the largest number of accelerators."""
