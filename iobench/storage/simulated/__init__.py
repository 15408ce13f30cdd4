"""Storage of known behaviour: throttled, faulty, and one that holds nothing."""
