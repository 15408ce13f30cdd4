"""One job over many hosts: who takes part, how they meet, and how ranks of others are reached."""
