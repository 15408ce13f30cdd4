"""Loaders: batches of samples from storage as torch tensors."""
