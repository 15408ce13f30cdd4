"""What users write: workloads, datasets, walks and prices, as strict models."""
