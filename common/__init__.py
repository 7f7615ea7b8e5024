"""Code that the controller, learner, evaluator and command line share."""
