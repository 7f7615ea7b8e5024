"""What jobs specify and tasks carry: training, optimizers, kept models, and which way metrics are better."""
