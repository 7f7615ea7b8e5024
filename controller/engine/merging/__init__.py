"""From contributions to the next version: examine, weigh, order the merge, enter the version."""
