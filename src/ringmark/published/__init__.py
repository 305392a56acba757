"""Published numbers: read from logs and pages (ingest), held against each other (audit), and judged (verdict)."""
