"""The registry of plugins, and the packages that bring them."""
