"""How reports of evaluators become metrics of a model: evaluation plans and the scores that they use."""
