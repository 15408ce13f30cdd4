"""How the requests of a batch are carried out: the read engines."""
