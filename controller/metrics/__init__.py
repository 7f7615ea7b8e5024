"""Metrics for Prometheus: the numbers, and the web server that serves them."""
