"""What a rank does, one file for each kind of task (see ``runner.messages``)."""
