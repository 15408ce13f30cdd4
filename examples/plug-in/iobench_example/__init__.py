"""Plug-ins for iobench."""
