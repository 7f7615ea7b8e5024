"""`python -m hansa` is the same as the `hansa` command."""

from hansa.common.cli import hansa

if __name__ == "__main__":
    hansa()
