"""Values that several of the controller's rooms share; they depend on none of these rooms."""
