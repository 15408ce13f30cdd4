"""Files of a local or mounted file system, read with or without O_DIRECT."""
