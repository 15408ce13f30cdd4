"""One writer for each place: local locks, lock objects, their heartbeat, and readers."""
