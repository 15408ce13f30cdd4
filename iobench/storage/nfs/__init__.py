"""NFS in user space, by libnfs: no kernel mount and no page cache."""
