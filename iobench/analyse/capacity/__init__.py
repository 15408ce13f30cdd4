"""What a job needs and what a storage can feed: size, the requirement, models of rates, what-if."""
