"""The evaluator: evaluates models on a site's validation or test data."""
