"""`hansa sweep`: one job with many settings and seeds, run one after another and compared in a table."""
