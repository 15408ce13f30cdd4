"""The verdict on a run: metrics, evidence, limit, findings, advice, validity, thresholds."""
