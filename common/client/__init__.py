"""The Python client of a controller, which the command line uses, too; it does not import PyTorch."""
