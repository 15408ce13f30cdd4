"""What a run means: metrics, evidence, what binds, findings, advice, validity, thresholds."""
