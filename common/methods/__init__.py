"""What rules ask of learners: plugins that both sides know by name, with their arguments."""
