"""What serves: models that are loaded, and requests that arrive by themselves."""
