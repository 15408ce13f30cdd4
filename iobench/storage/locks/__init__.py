"""One writer for each place: locks of local files, lock objects with a heartbeat, and readers."""
