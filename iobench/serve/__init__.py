"""What comes before a model serves: its weights, and how they get from storage to tensors."""
