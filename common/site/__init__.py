"""The common parts of learner and evaluator: session, transfers, policy, the owner's apps and data."""
