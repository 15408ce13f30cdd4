"""What checkpoints mean: a study of saves, their meaning for a job, the best interval."""
