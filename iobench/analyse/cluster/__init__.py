"""A recorded job on more hosts than were measured."""
