"""The registry of plugins, and the packages that provide them."""
