"""Programs for those who work on iobench: they check it or make its documentation."""
