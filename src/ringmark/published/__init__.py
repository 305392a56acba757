"""Published numbers: read from logs and pages, held against each other, and given verdicts."""
