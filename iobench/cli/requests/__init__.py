"""What each verb can be asked: one typed model a verb, whose fields are its words and flags.

The modules are the groups of ``iobench --help``. They import nothing that a verb works with, so
that a help is printed at once. ``flags.py`` has the kinds of values and what all verbs share.
"""
