"""What a simulation keeps: models, what sites remember, the history, and the saves it goes on from."""
