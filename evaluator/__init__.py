"""The evaluator: measures models on a site's validation or test data."""
