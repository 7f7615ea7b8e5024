"""Methods that leave a part of the model, or a model of its own, at each site."""
