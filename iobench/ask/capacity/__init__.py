"""What a job needs and what a storage can feed: sizing, requirement, models of rates, what-if."""
