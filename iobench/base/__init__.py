"""What everything rests on: errors, texts, units, processes, memory, files and the page cache."""
