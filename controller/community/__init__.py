"""The community tier: weighted means of models, exact and independent of order."""
