"""What learner and evaluator share: attending, fetching models, handing in results, the owner's apps and data."""
