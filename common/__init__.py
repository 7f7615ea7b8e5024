"""What controller, learner, evaluator and the command line share."""
